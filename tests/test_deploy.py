"""deploy/ and the Dockerfile name options, routes and bounds that the server has."""

import json
import re
import shlex
import tempfile
import tomllib
from pathlib import Path

import pytest
import yaml
from torch._inductor import config as inductor
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import get_args_parser

from helpers.commands import call
from helpers.looking import reader
from helpers.serving import serve_models
from regard.cli.parser import build_parser
from regard.serve.peers import PATIENCE
from regard.serve.server import DRAIN

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def kinds():
    return {one["kind"]: one for one in yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text())}


@pytest.fixture(scope="module")
def pod(kinds):
    return kinds["Deployment"]["spec"]["template"]["spec"]


def test_options_of_the_container_are_those_of_the_command(kinds, pod):
    (container,) = pod["containers"]
    options = build_parser().parse_args(container["args"])
    (port,) = container["ports"]
    assert (options.command, options.host, options.port) == ("serve", "0.0.0.0", port["containerPort"])
    service = kinds["Service"]
    assert service["metadata"]["name"] in options.name  # the host that clients in the cluster ask for
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert container["env"][0]["name"] == "REGARD_API_KEY"
    assert options.model[0].startswith(container["volumeMounts"][0]["mountPath"])


def test_probes_are_answered_without_a_key(pod):
    (container,) = pod["containers"]
    probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
    with serve_models({"tiny": reader("write", "gpt")}, key="secret", host="0.0.0.0") as server:
        for probe in probes:
            path = probe["httpGet"]["path"]
            assert server.ask(path, headers={"Host": "10.0.0.7:7447"})[0] == 200  # kubelet's way: by address
            assert probe["timeoutSeconds"] > PATIENCE or path == "/health"
        assert server.ask("/v1/models")[0] == 401


def test_a_pod_may_finish_its_answers(pod):
    (container,) = pod["containers"]
    options = build_parser().parse_args(container["args"])
    command, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert pod["terminationGracePeriodSeconds"] > int(seconds) + options.timeout + DRAIN


def test_a_pod_has_no_rights(kinds, pod):
    (container,) = pod["containers"]
    limits = container["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert f"--uid {pod['securityContext']['runAsUser']} " in DOCKERFILE
    assert limits["readOnlyRootFilesystem"]
    assert not limits["allowPrivilegeEscalation"]
    assert limits["capabilities"] == {"drop": ["ALL"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert "/tmp" in mounts  # for sockets between workers, and what torch compiles
    assert mounts.keys() == {"/tmp", "/models"}
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in pod["volumes"]}
    assert set(tempfile._candidate_tempdir_list()) & mounts.keys()
    for kind in ("Service", "PodDisruptionBudget"):
        selector = kinds[kind]["spec"]["selector"]
        labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
        assert selector.get("matchLabels", selector) == labels
    assert kinds["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "regard"


def test_the_container_has_what_it_runs():
    for line in re.findall(r"^COPY (.*)", DOCKERFILE, re.M):
        assert all((ROOT / name).exists() for name in line.split()[:-1])
    torch = next(
        name
        for name in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        if name.startswith("torch")
    )
    assert f'"{torch}"' in DOCKERFILE
    commands = re.findall(r"^#   docker run .*? regard(?::gpu)? (.*)", DOCKERFILE, re.M)
    assert len(commands) > 1
    for command in commands:
        build_parser().parse_args(shlex.split(command))
    assert json.loads(re.search(r"^CMD (.*)", DOCKERFILE, re.M)[1]) == ["--help"]
    (entry,) = json.loads(re.search(r"^ENTRYPOINT (.*)", DOCKERFILE, re.M)[1])
    assert entry in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def test_the_container_has_the_compiler_that_torch_looks_for():
    """It needs both, g++ and gcc; Debian's g++ brings the other one along, and the headers."""
    (installed,) = re.findall(r"apt-get install -y --no-install-recommends (.*?) &&", DOCKERFILE)
    (compiler,) = (name for name in inductor.cpp.cxx if name)
    assert compiler in installed.split()


def test_what_the_container_copies_is_sent_to_the_builder():
    """And nothing else: .venv has gigabytes."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    copied = {name for line in re.findall(r"^COPY (.*)", DOCKERFILE, re.M) for name in line.split()[:-1]}
    assert {line[1:] for line in lines if line.startswith("!")} == copied
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= copied  # building it needs them


def test_the_containers_user_may_write_where_it_works():
    """A folder that WORKDIR makes belongs to root, also after USER."""
    steps = re.findall(r"^(RUN|USER|WORKDIR) (.*)", DOCKERFILE, re.M)
    (_, user), (_, folder) = steps[-2:]
    assert [kind for kind, _ in steps[-2:]] == ["USER", "WORKDIR"]
    (useradd,) = [line for kind, line in steps[:-2] if kind == "RUN" and "useradd" in line]
    assert useradd.endswith(f" {user} && install --directory --owner {user} --group {user} {folder}")
    for command in re.findall(r"^#   (docker run .*)", DOCKERFILE, re.M):
        assert f':{folder}"' in command
        assert '-u "$(id -u)"' in command  # a mounted folder belongs to somebody else


def check_launch(text):
    """Return the options of the command that a script starts with torchrun, once both are known ones."""
    words = shlex.split(text[text.index("-m regard") :].replace("$resume", "--resume"))
    launcher = set(re.findall(r"--[a-z-]+(?= )", text[text.index("torchrun ") : text.index("-m regard")]))
    known = {string for action in get_args_parser()._actions for string in action.option_strings}
    assert launcher <= known | {string.replace("_", "-") for string in known}
    return build_parser().parse_args(words[2:])


LIMITS = ("#SBATCH --signal=TERM@", "export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=")


def check_time_to_save(monkeypatch, seconds, grace):
    """torchrun waits for its processes nearly as long as it may live itself."""
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", seconds)
    waits = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=8).shutdown_timeout
    assert 0.9 * grace < waits < grace


def test_slurm_starts_a_command_that_exists(monkeypatch):
    text = (ROOT / "deploy/slurm.sh").read_text()
    options = check_launch(text)
    assert (options.command, options.data, options.out, options.resume) == ("train", ["$data"], "$run", True)
    (notice,), (seconds,) = (re.findall(rf"^{words}(\d+)", text, re.M) for words in LIMITS)
    check_time_to_save(monkeypatch, seconds, int(notice))


def test_pods_that_train_find_each_other(monkeypatch):
    service, job = yaml.safe_load_all((ROOT / "deploy/train.yaml").read_text())
    name, spec = job["metadata"]["name"], job["spec"]
    pod, (container,) = spec["template"]["spec"], spec["template"]["spec"]["containers"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["name"] == pod["subdomain"]
    (script,) = container["args"]
    assert f"--master-addr {name}-0.{pod['subdomain']} " in script
    numbers = {each["name"]: int(each["value"]) for each in container["env"]}
    assert numbers["MACHINES"] == spec["completions"] == spec["parallelism"]
    assert numbers["GPUS"] == container["resources"]["limits"]["nvidia.com/gpu"]
    seconds = str(numbers["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
    check_time_to_save(monkeypatch, seconds, pod["terminationGracePeriodSeconds"])
    options = check_launch(script)
    where = container["volumeMounts"][0]["mountPath"]
    assert all(path.startswith(f"{where}/") for path in (*options.data, options.out, options.recipe))
    assert options.resume


def test_the_recipe_of_a_large_model_is_planned(capsys, tmp_path):
    """As docs/scale.md prints it, except for the vocabulary."""
    (tmp_path / "a.txt").write_text("The fox jumps over the lazy dog. " * 99)
    call("train", ROOT / "deploy/7b.toml", tmp_path / "a.txt", "--dry-run", "--for", "256xh100")
    out = capsys.readouterr().out
    assert "256 processes, groups of 8 share the weights" in out
    assert "250,000 steps of 4.19 M tokens" in out
    assert "only" not in out  # it fits
