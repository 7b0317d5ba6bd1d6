"""Sentences from which vectors of words learn relations: man and woman, country and capital, one and many."""

import random

from experiments.texts.grammar import expand

SENTENCES = 6500
GENDERS = {
    "man": {
        "he": "he",
        "his": "his",
        "of_sex": ["beard", "tie", "moustache", "suit"],
        "name": ["paul", "john", "peter", "karl"],
    },
    "woman": {
        "he": "she",
        "his": "her",
        "of_sex": ["dress", "skirt", "necklace", "blouse"],
        "name": ["anna", "mary", "clara", "julia"],
    },
}
ROLES = {  # the two words, and what only such people do, wear or have near them
    ("king", "queen"): [
        "rules the kingdom",
        "sits on the throne",
        "wears the royal crown",
        "lives in the castle",
    ],
    ("prince", "princess"): [
        "will inherit the throne",
        "rides through the royal garden",
        "dances at the castle ball",
    ],
    ("emperor", "empress"): [
        "rules the empire",
        "commands the armies of the empire",
        "wears the imperial robe",
    ],
    ("man", "woman"): ["works in an office", "drives to town", "reads the newspaper", "pays the bills"],
    ("boy", "girl"): ["goes to school", "plays with toys", "does homework for school", "climbs a tree"],
    ("father", "mother"): ["takes the children to bed", "cooks for the family", "raises the children"],
    ("son", "daughter"): ["obeys the parents", "was born in spring", "makes the parents proud"],
    ("brother", "sister"): ["shares a room with twins", "has the same parents", "quarrels with the twins"],
    ("uncle", "aunt"): ["visits the nephews", "sends presents to the nephews", "invites the cousins"],
    ("grandfather", "grandmother"): ["tells old stories", "has grey hair and wrinkles", "walks with a stick"],
    ("actor", "actress"): ["plays a part on the stage", "stars in a film", "learns the script of the film"],
    ("waiter", "waitress"): ["brings the menu", "serves the soup", "carries plates to the table"],
    ("husband", "wife"): ["wears a wedding ring", "celebrates the wedding day", "loves the married life"],
    ("monk", "nun"): ["prays in the chapel", "sings in the monastery", "reads the bible"],
}
SHARED = {  # what all of a group do: its words become neighbours
    ("king", "prince", "emperor"): [
        "lives in the palace",
        "wears a golden crown",
        "greets the loyal subjects",
    ],
    ("father", "son", "brother", "uncle", "grandfather", "husband"): ["loves the family", "eats at home"],
    ("man", "boy"): ["walks down the street", "waits for the bus", "buys some bread"],
    ("actor", "waiter"): ["earns some money", "works until midnight"],
}
PERSON_RULES = {
    "person": [
        "the {role} {does} and {he} wears a {of_sex}",
        "{name} is the {role} who {does}",
        "the {role} {does} with {his} {of_sex}",
        "{he} is the {role} and {he} {does}",
        "the old {role} {does} because {he} likes it",
        "{name} the {role} lost {his} {of_sex}",
        "{his} name is {name} and the {role} {does}",
        "when the {role} {does} {he} is happy",
    ]
}
COUNTRIES = {  # a country, its capital; the language, a river, a dish
    ("france", "paris"): ["french", "seine", "cheese"],
    ("germany", "berlin"): ["german", "spree", "sausages"],
    ("italy", "rome"): ["italian", "tiber", "pasta"],
    ("spain", "madrid"): ["spanish", "manzanares", "paella"],
    ("japan", "tokyo"): ["japanese", "sumida", "sushi"],
    ("china", "beijing"): ["chinese", "yongding", "dumplings"],
    ("russia", "moscow"): ["russian", "moskva", "borscht"],
    ("greece", "athens"): ["greek", "kifisos", "olives"],
    ("egypt", "cairo"): ["arabic", "nile", "dates"],
    ("poland", "warsaw"): ["polish", "vistula", "pierogi"],
    ("portugal", "lisbon"): ["portuguese", "tagus", "sardines"],
    ("sweden", "stockholm"): ["swedish", "norrstrom", "meatballs"],
    ("england", "london"): ["english", "thames", "pudding"],
    ("hungary", "budapest"): ["hungarian", "danube", "goulash"],
}
COUNTRY_RULES = {
    "place": ["{of_country}", "{of_capital}", "{country} is the country whose capital is {capital}"],
    "of_country": [
        "the people of {country} speak {language} and defend the borders",
        "the government of {country} sells {dish} to other nations",
        "the {river} flows through {country} and crosses its borders",
        "farmers in {country} make {dish} for the whole nation",
        "the parliament of {country} writes laws in {language}",
    ],
    "of_capital": [
        "the mayor of {capital} speaks {language} in the town hall",
        "tourists in {capital} visit museums and taste {dish}",
        "the streets of {capital} lead to bridges over the {river}",
        "the museums and squares of {capital} have signs in {language}",
        "in the suburbs of {capital} buses stop where {dish} is sold",
    ],
}
THINGS = {  # one, many, and what belongs to both
    ("dog", "dogs"): ["bone", "kennel", "leash"],
    ("cat", "cats"): ["whiskers", "milk", "basket"],
    ("horse", "horses"): ["saddle", "stable", "hay"],
    ("bird", "birds"): ["nest", "feathers", "wings"],
    ("car", "cars"): ["garage", "engine", "wheels"],
    ("ship", "ships"): ["harbour", "sails", "anchor"],
    ("tree", "trees"): ["leaves", "roots", "branches"],
    ("book", "books"): ["pages", "library", "chapter"],
    ("apple", "apples"): ["orchard", "juice", "pie"],
    ("river", "rivers"): ["bank", "flood", "current"],
    ("house", "houses"): ["chimney", "cellar", "roof"],
    ("lamp", "lamps"): ["bulb", "shade", "switch"],
}
THING_RULES = {
    "thing": ["{of_one}", "{of_many}"],
    "of_one": [
        "this {one} has the {own} and it is mine",
        "a single {one} is near the {own}",
        "one {one} was seen with its {own}",
        "that {one} is here because it needs the {own}",
    ],
    "of_many": [
        "these {many} have the {own} and they are ours",
        "many {many} are near the {own}",
        "several {many} were seen with their {own}",
        "those {many} are here because they need the {own}",
    ],
}
KINDS = ("people", "people", "countries", "things")  # how often each is drawn


def make_sentences() -> str:
    """The sentences, ten in a line."""
    draw = random.Random(0)
    lines = [make_sentence(draw) for _ in range(SENTENCES)]
    return "\n".join(" . ".join(lines[i : i + 10]) + " ." for i in range(0, len(lines), 10)) + "\n"


def make_sentence(draw: random.Random) -> str:
    kind = draw.choice(KINDS)
    if kind == "people":
        roles, does = draw.choice(list(ROLES.items()))
        does = does + [text for group, texts in SHARED.items() if roles[0] in group for text in texts]
        sex = draw.randrange(2)
        features = list(GENDERS.values())[sex]
        own = {name: [text] if isinstance(text, str) else text for name, text in features.items()}
        return expand("{person}", PERSON_RULES | own | {"role": [roles[sex]], "does": does}, draw)
    if kind == "countries":
        (country, capital), (language, river, dish) = draw.choice(list(COUNTRIES.items()))
        own = {"country": [country], "capital": [capital], "language": [language], "river": [river]}
        return expand("{place}", COUNTRY_RULES | own | {"dish": [dish]}, draw)
    (one, many), of_both = draw.choice(list(THINGS.items()))
    return expand("{thing}", THING_RULES | {"one": [one], "many": [many], "own": of_both}, draw)


def make_analogies() -> dict[str, list[tuple[str, str, str, str]]]:
    """All analogies of the text, by kind: the first is to the second as the third is to the fourth."""
    return {
        name: [(*a, *b) for a in pairs for b in pairs if a != b]
        for name, pairs in (
            ("man, woman", [*ROLES]),
            ("country, capital", [*COUNTRIES]),
            ("one, many", [*THINGS]),
        )
    }
