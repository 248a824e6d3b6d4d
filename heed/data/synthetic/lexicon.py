"""Lexicon of the synthetic corpus: nouns, adjectives and verbs in English and French.

Each table has one word per line, in columns separated by bars. A noun has a kind (what it is) and a
topic (the stories it belongs to). Verbs and adjectives list the kinds, or single nouns, that they
combine with, and after a minus the exceptions: une vieille fille is not an old girl, nor une belle
mère a beautiful mother. Every English word has exactly one French translation: words for people
whose gender English does not show are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from heed.data.synthetic.french import Conjugation, conjugate

TOPICS = ("farm", "castle", "town", "home")

# english (and its plural if irregular) | french | gender | kind | topic
_NOUNS = """
uncle | oncle | m | person | farm
aunt | tante | f | person | farm
grandfather | grand-père | m | person | farm
grandmother | grand-mère | f | person | farm
king | roi | m | person | castle
queen | reine | f | person | castle
prince | prince | m | person | castle
princess | princesse | f | person | castle
man men | homme | m | person | town
woman women | femme | f | person | town
waiter | serveur | m | person | town
waitress | serveuse | f | person | town
boy | garçon | m | person | home
girl | fille | f | person | home
brother | frère | m | person | home
sister | sœur | f | person | home
father | père | m | person | home
mother | mère | f | person | home
cow | vache | f | animal | farm
horse | cheval | m | animal | farm
goat | chèvre | f | animal | farm
wolf wolves | loup | m | animal | castle
fox | renard | m | animal | castle
frog | grenouille | f | animal | castle
dog | chien | m | animal | town
bird | oiseau | m | animal | town
tortoise | tortue | f | animal | town
cat | chat | m | animal | home
mouse mice | souris | f | animal | home
rabbit | lapin | m | animal | home
apple | pomme | f | food | farm
egg | œuf | m | food | farm
pear | poire | f | food | castle
pie | tarte | f | food | castle
cake | gâteau | m | food | town
cheese | fromage | m | food | town
soup | soupe | f | food | home
carrot | carotte | f | food | home
story | histoire | f | text | farm
letter | lettre | f | text | castle
poem | poème | m | text | castle
newspaper | journal | m | text | town
book | livre | m | text | home
basket | panier | m | object | farm
hat | chapeau | m | object | farm
bucket | seau | m | object | farm
flower | fleur | f | object | farm
crown | couronne | f | object | castle
sword | épée | f | object | castle
ring | bague | f | object | castle
key | clé | f | object | castle
car | voiture | f | object | town
coat | manteau | m | object | town
umbrella | parapluie | m | object | town
bag | sac | m | object | town
ball | ballon | m | object | home
doll | poupée | f | object | home
lamp | lampe | f | object | home
box | boîte | f | object | home
pillow | oreiller | m | object | home
farm | ferme | f | place | farm
field | champ | m | place | farm
river | rivière | f | place | farm
market | marché | m | place | farm
island | île | f | place | farm
castle | château | m | place | castle
forest | forêt | f | place | castle
tower | tour | f | place | castle
bridge | pont | m | place | castle
tree | arbre | m | place | castle
station | gare | f | place | town
theatre | théâtre | m | place | town
hotel | hôtel | m | place | town
park | parc | m | place | town
church | église | f | place | town
kitchen | cuisine | f | place | home
garden | jardin | m | place | home
school | école | f | place | home
house | maison | f | place | home
"""

# english | french | side of the French noun | what it describes
_ADJECTIVES = """
small | petit | before | person animal food object place
big | grand | before | animal object place
beautiful | beau | before | person animal object place -father -mother -brother -sister
old | vieux | before | person animal object place text -boy -girl
young | jeune | before | person animal
new | nouveau | before | object place text
good | bon | before | food text
pretty | joli | before | flower crown ring hat lamp doll box bag coat house bird cat mouse
red | rouge | color | object apple
black | noir | color | animal object
white | blanc | color | animal object cheese egg
green | vert | color | object apple pear frog
blue | bleu | color | object bird
yellow | jaune | color | object pear bird
grey | gris | color | cat mouse rabbit wolf goat bird hat coat umbrella bag car sword key box
happy | heureux | after | person animal
sad | triste | after | person animal text
tired | fatigué | after | person animal
brave | courageux | after | person dog horse mouse
clever | intelligent | after | person animal
strange | étrange | after | person animal text object place
kind | gentil | after | person animal
strong | fort | after | person horse wolf dog cow
heavy | lourd | after | object
clean | propre | after | object kitchen house hotel station
dirty | sale | after | object animal kitchen house
empty | vide | after | basket bucket bag box car theatre hotel station school castle house park
hot | chaud | after | food
cold | froid | after | food
interesting | intéressant | after | text
funny | drôle | after | text person animal
quiet | calme | after | place person animal
dark | sombre | after | forest tower castle house theatre kitchen
"""

# english (and its past if irregular; an underscore joins a particle) | french | who | what
_VERBS = """
see saw | voir | person animal | person animal food object place
like | aimer | person animal | person animal food text object place
eat ate | manger | person animal | food
buy bought | acheter | person | food text object
prepare | préparer | person | food
read read | lire | person | text
draw drew | dessiner | person | person animal object place
take took | prendre | person | food text object
find found | trouver | person animal | person animal food text object
carry | porter | person | food object -car
close | fermer | person | box bag basket umbrella book newspaper car letter church school house
break broke | casser | person animal | lamp doll box umbrella bucket crown egg
hide hid | cacher | person animal | food text object
wash | laver | person | car coat bucket doll hat bag basket carrot apple dog horse cow
follow | suivre | person animal | person animal
watch | regarder | person animal | person animal
visit | visiter | person | place -tree -bridge -river -station -kitchen
look_for | chercher | person animal | person animal food text object
want | vouloir | person | animal food text object
have had | avoir | person | animal food text object
give gave | donner | person | food text object
sleep slept | dormir | person animal |
run ran | courir | person animal |
sing sang | chanter | person bird frog |
dance | danser | person |
work | travailler | person horse dog |
laugh | rire | person |
fall fell | tomber | person animal object |
stay | rester | person animal |
go went | aller | person animal |
come came | venir | person animal |
"""

# Verbs of state: their past is the imperfect, since a state has no definite end. The past of every
# other verb is the passé composé.
STATES = frozenset({"like", "want", "have"})
WITH_ETRE = frozenset({"fall", "stay", "go", "come"})

HERS, HIS = ("Marie", "Clara", "Julie"), ("Paul", "Louis", "Victor")


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun. `index` is its row, on which the rule for held-out combinations depends."""

    index: int
    english: str
    english_plural: str
    french: str
    feminine: bool
    kind: str
    topic: str
    single: bool  # never in the plural here


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective, its position relative to the French noun, and the nouns it describes."""

    index: int
    english: str
    french: str
    before: bool
    color: bool
    nouns: frozenset[Noun]


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb with its English and French forms, its possible subjects and objects."""

    index: int
    english: str
    third: str
    past: str
    particle: str
    french: Conjugation
    state: bool
    etre: bool
    subjects: frozenset[Noun]
    objects: frozenset[Noun]


def add_s(word: str) -> str:
    """An English plural or third person: cats, boxes, stories, boys."""
    if word.endswith(("s", "x", "ch", "sh", "go")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def add_ed(word: str) -> str:
    """The past of a regular English verb: liked, carried, stayed, opened."""
    if word.endswith("e"):
        return word + "d"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ied"
    return word + "ed"


def _rows(table: str) -> Iterable[tuple[int, list[str]]]:
    for index, line in enumerate(table.strip().splitlines()):
        yield index, [cell.strip() for cell in line.split("|")]


def _noun(index: int, cells: list[str]) -> Noun:
    english, french, gender, kind, topic = cells
    singular, _, irregular = english.partition(" ")
    many = irregular or add_s(singular)
    single = kind == "place" or singular in ("father", "mother")
    return Noun(index, singular, many, french, gender == "f", kind, topic, single)


NOUNS = tuple(_noun(index, cells) for index, cells in _rows(_NOUNS))


def select_nouns(words: str) -> frozenset[Noun]:
    """The nouns of a list of kinds and single nouns; a minus excludes one."""
    wanted = set(words.split())
    return frozenset(
        noun
        for noun in NOUNS
        if (noun.kind in wanted or noun.english in wanted) and f"-{noun.english}" not in wanted
    )


FAMILY = select_nouns("uncle aunt grandfather grandmother brother sister father mother")
AT = select_nouns("farm market station theatre school")  # "at the farm", à la ferme
ONLY_NEAR = select_nouns("river bridge tree island")
BUILT = select_nouns("tree church farm castle tower station theatre hotel school house")


def _adjective(index: int, cells: list[str]) -> Adjective:
    english, french, side, nouns = cells
    return Adjective(index, english, french, side == "before", side == "color", select_nouns(nouns))


def _verb(index: int, cells: list[str]) -> Verb:
    english, french, subjects, objects = cells
    base, _, irregular = english.partition(" ")
    base, _, particle = base.partition("_")
    return Verb(
        index,
        base,
        "has" if base == "have" else add_s(base),
        irregular or add_ed(base),
        particle,
        conjugate(french),
        base in STATES,
        base in WITH_ETRE,
        select_nouns(subjects),
        select_nouns(objects),
    )


ADJECTIVES = tuple(_adjective(index, cells) for index, cells in _rows(_ADJECTIVES))
VERBS = tuple(_verb(index, cells) for index, cells in _rows(_VERBS))
VERB = {verb.english: verb for verb in VERBS}
