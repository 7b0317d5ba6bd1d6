"""The scripts of `regard completion`, without the commands: a line @NAME@ stands for what completion.py
inserts."""

SETTINGS = r"sed -n 's/^  \([a-z]*\.[a-z0-9_]*\) .*/\1=/p'"  # of `regard train RECIPE --help`

BASH = r"""# regard completion bash: put this line into ~/.bashrc: eval "$(regard completion bash)"
_regard() {
    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
    local options="" valued="" runs="" begin="" models="" offered="" first="" i
    COMPREPLY=()
    case "${COMP_WORDS[1]}" in
    @COMMANDS@
    esac
    if [ "$current" = = ]; then  # --device=cpu is three words to bash
        current=""
    elif [ "$previous" = = ]; then
        previous="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    for ((i = 2; i < COMP_CWORD; i++)); do  # the first argument, as options may stand before it
        [[ "${COMP_WORDS[i]}" == [-=]* || "${COMP_WORDS[i-1]}" == = ]] && continue
        [[ " $valued " == *" ${COMP_WORDS[i-1]} "* ]] || { first="${COMP_WORDS[i]}"; break; }
    done
    if [ "$COMP_CWORD" -eq 1 ]; then
        @NAMES@
    elif [[ " $valued " == *" $previous "* ]]; then
        case "${COMP_WORDS[1]} $previous" in
        @CHOICES@
        'train --set') _regard_settings "$first" && offered="preset= $_regard_keys" ;;
        'prepare --set') _regard_settings write && offered="$(grep '^data[.]' <<< "$_regard_keys")" ;;
        esac
        [[ " $runs " != *" $previous "* || -n "$current" ]] || _regard_runs
    elif [[ "$current" == -* ]]; then
        offered="$options"
    elif [[ -z "$current" && ( "$models" == every || "$models$first" == first ) ]]; then
        _regard_runs
    elif [ -z "$first" ]; then
        offered="$begin"
    fi
    [ -z "$offered" ] || COMPREPLY=($(compgen -W "$offered" -- "$current"))
    [[ "${COMPREPLY[0]}" != *= ]] || _regard_option nospace
}
_regard_option() { type compopt >/dev/null 2>&1 && compopt -o "$1"; }  # bash 3 of macOS has none
_regard_runs() {
    local run
    for run in runs/*/config.json; do
        [ ! -e "$run" ] || COMPREPLY+=("${run%/config.json}")
    done
    _regard_option filenames
}
_regard_settings() {  # of a recipe, which starts Python, but only once
    [ -n "$1" ] || return
    [ "$1" = "$_regard_recipe" ] || _regard_keys="$(regard train "$1" --help 2>/dev/null | @SETTINGS@)"
    _regard_recipe="$1"
}
complete -o default -F _regard regard
""".replace("@SETTINGS@", SETTINGS)

ZSH = r"""#compdef regard
# regard completion zsh: put this line into ~/.zshrc: eval "$(regard completion zsh)"
_regard() {
    local current="${words[CURRENT]}" previous="${words[CURRENT-1]}" command="${words[2]}"
    local options="" valued="" runs="" begin="" models="" first="" i
    local -a offers
    case "$command" in
    @COMMANDS@
    esac
    if (( CURRENT == 2 )); then
        @NAMES@
        _describe -t commands command offers
        return
    fi
    for ((i = 3; i < CURRENT; i++)); do  # the first argument, as options may stand before it
        [[ "${words[i]}" == -* || " $valued " == *" ${words[i-1]} "* ]] || { first="${words[i]}"; break; }
    done
    if [[ "$current" == --*=* ]]; then
        previous="${current%%=*}" current="${current#*=}"
        compset -P 1 '*='
    fi
    if [[ " $valued " == *" $previous "* ]]; then
        _regard_value
    elif [[ "$current" == -* ]]; then
        case "$command" in
        @OPTIONS@
        esac
        _describe -o option offers
    else
        [[ -n "$first" ]] || compadd -- ${=begin}
        [[ -z "$current" && ( "$models" == every || "$models$first" == first ) ]] && _regard_runs || _files
    fi
}
_regard_value() {
    local offered=""
    case "$command $previous" in
    @CHOICES@
    'train --set') _regard_settings "$first" && offered="preset= $_regard_keys" ;;
    'prepare --set') _regard_settings write && offered="$(grep '^data[.]' <<< "$_regard_keys")" ;;
    esac
    if [[ "$offered" == *=* ]]; then
        compadd -S '' -- ${=offered}
    elif [[ -n "$offered" ]]; then
        compadd -- ${=offered}
    else
        [[ -z "$current" && " $runs " == *" $previous "* ]] && _regard_runs || _files
    fi
}
_regard_runs() { compadd -f -- runs/*/config.json(N:h) }
_regard_settings() {  # of a recipe, which starts Python, but only once
    [[ -n "$1" ]] || return
    [[ "$1" != "$_regard_recipe" ]] || return 0
    _regard_keys="$(regard train "${(Q)1}" --help 2>/dev/null | @SETTINGS@)" _regard_recipe="$1"
}
if [[ "${funcstack[1]}" == _regard ]]; then  # as a file _regard in a folder of $fpath
    _regard "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _regard regard
fi
""".replace("@SETTINGS@", SETTINGS)

FISH = r"""# regard completion fish > ~/.config/fish/completions/regard.fish
function __regard_no_command
    test (count (commandline -opc)) -eq 1
end
function __regard_command  # whether the command is this one
    set -l words (commandline -opc)
    test (count $words) -gt 1; and test $words[2] = $argv[1]
end
function __regard_argument  # the first argument, as options may stand before it
    set -l words (commandline -opc)
    set -l valued
    switch "$words[2]"
        @VALUED@
    end
    set -l previous ""
    for word in $words[3..-1]
        if not string match -q -- '-*' $word; and not contains -- $previous $valued
            echo $word
            return
        end
        set previous $word
    end
end
function __regard_first  # whether the command is this one, and has no argument yet
    set -l argument (__regard_argument)
    __regard_command $argv[1]; and test -z "$argument"
end
function __regard_named  # the same, and what is typed is no path: a folder may have the name of a recipe
    set -l current (commandline -ct)
    __regard_first $argv[1]; and not string match -qr '[/.~]' -- "$current"
end
function __regard_recipes
    for file in *.toml
        echo $file
    end
end
function __regard_runs
    set -l current (commandline -ct)
    test -z "$current"; or return
    for config in runs/*/config.json
        string replace -r '/config.json$' '' -- $config
    end
end
function __regard_settings  # of a recipe, which starts Python, but only once
    set -l recipe (__regard_argument)
    __regard_command prepare; and set recipe write
    test -n "$recipe"; or return
    if test "$recipe" != "$__regard_recipe"
        set -g __regard_keys (regard train $recipe --help 2>/dev/null | @SETTINGS@)
        set -g __regard_recipe $recipe
    end
    if __regard_command prepare
        string match -- 'data.*' $__regard_keys
    else
        printf '%s\n' preset= $__regard_keys
    end
end
@COMPLETE@
""".replace("@SETTINGS@", SETTINGS)
