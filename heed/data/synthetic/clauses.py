"""Clauses: who or what, does or is what, where and with whom.

`Teller` adds the phrases of a clause to a draft one by one. It draws only what English settles:
where English would leave the French open (I went: allé or allée?), the draft is given up and
another drawn.
"""

from __future__ import annotations

from heed.data.synthetic.lexicon import (
    BUILT,
    FAMILY,
    NOUNS,
    ONLY_NEAR,
    TOPICS,
    VERB,
    Adjective,
    Noun,
    Verb,
    chosen,
)
from heed.data.synthetic.phrases import (
    FUTURE,
    NEGATIVE,
    PAST,
    PREPOSITIONS,
    PRESENT,
    SUBJECT_PRONOUNS,
    THAT_DOES,
    THAT_IS_DONE,
    WHO,
    Agreement,
    inside,
    noun_phrase,
    proper,
    quality,
    to_be,
    verb_group,
)
from heed.data.synthetic.random_choices import (
    DESCRIBED,
    DONE_BY,
    DONE_TO,
    MYSELF,
    Dice,
    Draft,
    Entity,
    Word,
    entity,
)
from heed.data.synthetic.speakers import (
    CLOSERS,
    DEGREES,
    DETERMINERS,
    KNOWN,
    MANNERS,
    OF_PLACES,
    OPENERS,
    Habits,
    weighted,
)

SETTLED = frozenset({"the", "this", "my", "his", "her"})  # subjects that a negation suits
RELATABLE = frozenset({"the", "this", "a", "two", "three", "four"})

PREDICATES = {
    "person": weighted({"act": 50, "offer": 11, "do": 15, "move": 13, "be": 11}),
    "animal": weighted({"act": 46, "do": 26, "move": 10, "be": 18}),
    "thing": weighted({"be": 9, "do": 1}),
    "I": weighted({"act": 68, "offer": 10, "do": 11, "move": 7, "be": 4}),
}
SUBJECTS = weighted({"hero": 44, "friend": 24, "beast": 22, "thing": 10})
MANNERS_OF = {
    "run": ("slowly", "quickly"),
    "dance": ("slowly", "quickly"),
    "work": ("slowly", "quickly"),
    "sing": ("softly",),
    "laugh": ("softly",),
}
MADE_FOR = tuple(VERB[word] for word in ("prepare", "buy", "draw", "find", "take"))
GIFTS = ("food", "text", "object")
SOMEBODY = next(noun for noun in NOUNS if noun.english == "man")  # whoever he, she or Paul is
PLACES, NO_WAY = chosen("place"), chosen("tree island")  # one goes to and comes from most
OTHERS = tuple(noun for noun in NOUNS if noun.kind == "person" and noun not in FAMILY)
_BY_KIND = {
    (kind, topic): tuple(n for n in NOUNS if n.kind == kind and n.topic == topic)
    for kind in ("person", "animal", "food", "text", "object", "place")
    for topic in TOPICS
}


class Teller:
    """Somebody with habits, a topic and a cast, who can say a clause."""

    def __init__(self, dice: Dice, habits: Habits, hero: Entity | None) -> None:
        self.dice, self.habits = dice, habits
        self.topic = dice.pick(habits.topics)
        self.hero = hero or entity(self._any("person"), False)
        friend, beast = self._any("person"), self._any("animal")
        self.friend = entity(friend, not friend.single and dice.chance(60))
        self.beast = entity(beast, dice.chance(55))
        self.things = [self._any(dice.pick(GIFTS)) for _ in range(4)]
        self.places = [self._any("place") for _ in range(2)]
        self.targets = (*self.things * 2, *[friend, beast] * 2, self.places[0])
        self.seen: set[Word] = set()
        self.told = 0

    def _any(self, kind: str) -> Noun:
        """A noun of a kind, mostly of the story's topic."""
        topic = self.topic if self.dice.chance(75) else self.dice.pick(TOPICS)
        return self.dice.pick(_BY_KIND[kind, topic])

    # Who

    def _subject(self, draft: Draft, tense: str, *, things: bool = True) -> tuple[Entity, bool]:
        """Say who or what the clause is about; also whether a negation suits it."""
        dice = self.dice
        draft.vague = False
        if dice.chance(self.habits.myself):
            draft.pieces.append(SUBJECT_PRONOUNS["I", False])
            return MYSELF, True
        role, determiner = dice.pick(SUBJECTS), ""
        if role == "thing" and things:
            determiner = dice.pick(KNOWN)
            noun = dice.pick((*self.things, *self.places))
            about = entity(noun, not noun.single and dice.chance(30))
        else:
            about = {"friend": self.friend, "beast": self.beast}.get(role, self.hero)
        if about is self.hero and self.told and dice.chance(45):
            pronoun = SUBJECT_PRONOUNS[about.pronoun, about.agreement.feminine]
            draft.pieces.append(pronoun)
            return about._replace(noun=None), True
        determiner = self._mention(draft, about, determiner)
        if determiner in RELATABLE and dice.chance(self.habits.related):
            self._relative(draft, about, tense)
        draft.vague = determiner == "a"
        return about, determiner in SETTLED

    def _mention(self, draft: Draft, about: Entity, determiner: str = "") -> str:
        """A name, or a noun with its determiner and adjectives; returns the determiner.

        A name, or a noun with an owner, counts as my: it is settled and takes no relative.
        """
        noun = about.noun
        draft.mention(about)
        if noun is None:
            draft.pieces.append(proper(about.name))
            return "my"
        many = about.agreement.plural
        determiner = determiner or self._determiner(noun, many)
        adjectives = self._adjectives(draft, noun)
        draft.pieces.append(noun_phrase(determiner, adjectives, noun, many))
        of_whom = determiner == "the" and (
            noun in FAMILY or (noun.kind == "text" and self.dice.chance(20))
        )
        if of_whom:
            owner = entity(self.dice.pick(OTHERS), self.dice.chance(25))
            draft.mention(owner)
            draft.pieces.append(PREPOSITIONS["of"])
            draft.pieces.append(noun_phrase("the", (), owner.noun, owner.agreement.plural))
            return "my"
        return determiner

    def _determiner(self, noun: Noun, many: bool) -> str:
        whose = "thing"
        if noun.kind == "person":
            whose = "family" if noun in FAMILY else "person"
        return self.dice.pick(DETERMINERS[whose, noun in self.seen, many])

    def _adjectives(self, draft: Draft, noun: Noun) -> tuple[Adjective, ...]:
        dice, habits = self.dice, self.habits
        if not dice.chance(habits.described):
            return ()
        first = dice.pick(habits.adjectives[noun])
        draft.combine(DESCRIBED, first, noun)
        draft.say(first)
        draft.described.add(noun)
        if first.before and habits.colours[noun] and dice.chance(25):
            colour = dice.pick(habits.colours[noun])
            draft.combine(DESCRIBED, colour, noun)
            draft.say(colour)
            return first, colour
        return (first,)

    def _relative(self, draft: Draft, about: Entity, tense: str) -> None:
        """Who sleeps, that the king sees: at most one in a sentence."""
        if draft.related or about.noun is None:
            return
        draft.related = True
        dice = self.dice
        tense = tense if dice.chance(80) else PRESENT
        adverb = self._adverb(draft, True)
        if about.kind != "thing" and dice.chance(50):
            draft.pieces.append(WHO if about.kind == "person" else THAT_DOES)
            self._predicate(draft, about, tense, adverb, brief=True)
            return
        doer = dice.pick((self.hero, self.hero, self.friend, self.beast, MYSELF))
        verbs = self.habits.actions[doer.kind, about.noun]
        draft.must(bool(verbs))
        verb = dice.pick(verbs)
        draft.must(verb is not VERB["have"])  # nobody reads on easily: the wolf that I had ran
        self._check(draft, verb, tense, doer.agreement, adverb, about.agreement)
        draft.pieces.append(THAT_IS_DONE)
        if doer is MYSELF or (doer is self.hero and self.told and dice.chance(40)):
            pronoun = SUBJECT_PRONOUNS[doer.pronoun, doer.agreement.feminine]
            draft.pieces.append(pronoun)
        else:
            self._mention(draft, doer)
            draft.combine(DONE_BY, verb, doer.noun)
        draft.combine(DONE_TO, verb, about.noun)
        group = verb_group(verb, tense, doer.agreement, adverb, "", about.agreement)
        draft.pieces.append(group)

    # Does what

    def _adverb(self, draft: Draft, settled: bool) -> str:
        """Not, never, often, always or nothing. Nobody says a man does not sleep, nor soon he
        will never sleep."""
        adverb = self.dice.pick(self.habits.adverbs)
        if not settled or (draft.timed and adverb != "not"):
            return ""
        draft.timed = draft.timed or adverb not in ("", "not")
        return adverb

    def _check(
        self,
        draft: Draft,
        verb: Verb,
        tense: str,
        subject: Agreement,
        adverb: str,
        moved: Agreement | None = None,
    ) -> None:
        """Refuse what English does not settle, and participles in the plural before avoir.

        They read: present or past? I went: allé or allée? Plural agreement with an object that
        stands before the verb (vus, vues) would double the participles for few examples each.
        """
        draft.say(verb)
        bare = tense != FUTURE and adverb != "not" and (subject.plural or subject.first_person)
        draft.must(not bare or verb.past != verb.english or draft.dated)
        if tense != PAST or verb.state:
            return
        draft.must(not (verb.etre and subject.first_person))
        draft.must(moved is None or not moved.plural)

    def _predicate(
        self, draft: Draft, subject: Entity, tense: str, adverb: str, *, brief: bool = False
    ) -> None:
        """What the subject does or is; a brief one goes no further than that."""
        dice = self.dice
        does = dice.pick(PREDICATES["I" if subject is MYSELF else subject.kind])
        if does == "be":
            self._be(draft, subject, tense, adverb)
        elif does == "do":
            self._do(draft, subject, tense, adverb, brief=brief)
        elif does == "move":
            move = dice.pick((VERB["go"], VERB["go"], VERB["come"]))
            self._verb(draft, move, subject, tense, adverb)
            self._place(draft, "to" if move is VERB["go"] else "from")
        elif does == "offer" and not brief:
            self._offer(draft, subject, tense, adverb)
        else:
            verb, noun, _ = self._act(draft, subject, tense, adverb, simple=brief)
            if not brief and not (verb.state or noun in PLACES):
                self._tail(draft, subject, tense)

    def _verb(self, draft: Draft, verb: Verb, subject: Entity, tense: str, adverb: str) -> None:
        self._check(draft, verb, tense, subject.agreement, adverb)
        draft.must(not (draft.event and verb.state))
        draft.combine(DONE_BY, verb, subject.noun)
        draft.pieces.append(verb_group(verb, tense, subject.agreement, adverb))

    def _act(
        self, draft: Draft, subject: Entity, tense: str, adverb: str, *, simple: bool
    ) -> tuple[Verb, Noun, Entity]:
        """A verb and its object, which are returned; a simple object has no relative clause."""
        dice = self.dice
        noun = dice.pick(self.targets)
        if dice.chance(25):
            noun = self._any(dice.pick(GIFTS))
        verbs = self.habits.actions[subject.kind, noun]
        draft.must(bool(verbs))
        verb = dice.pick(verbs)
        self._verb(draft, verb, subject, tense, adverb)
        draft.combine(DONE_TO, verb, noun)
        target, determiner = self._object(draft, noun, verb, adverb)
        if not simple and determiner in RELATABLE and dice.chance(self.habits.related):
            self._relative(draft, target, tense)
        return verb, noun, target

    def _object(self, draft: Draft, noun: Noun, verb: Verb, adverb: str) -> tuple[Entity, str]:
        """Name the object: after a negation a becomes de, and one likes only what one knows."""
        dice = self.dice
        target = entity(noun, not noun.single and dice.chance(38))
        determiner = self._determiner(noun, target.agreement.plural)
        if noun.kind == "place":
            determiner = dice.pick(OF_PLACES)
        elif verb is VERB["like"] and determiner not in SETTLED:
            determiner = dice.pick(KNOWN)
        if determiner == "a" and adverb in NEGATIVE:
            determiner = "the" if noun.kind in ("person", "place") else "no"
        return target, self._mention(draft, target, determiner)

    def _offer(self, draft: Draft, subject: Entity, tense: str, adverb: str) -> None:
        """Give something to somebody, or find it for somebody."""
        dice = self.dice
        noun = dice.pick(self.things)
        verb = VERB["give"] if dice.chance(60) else dice.pick(MADE_FOR)
        draft.must(noun in verb.objects)
        self._verb(draft, verb, subject, tense, adverb)
        draft.combine(DONE_TO, verb, noun)
        self._object(draft, noun, verb, adverb)
        self._party(draft, "to" if verb is VERB["give"] else "for", subject)

    def _party(self, draft: Draft, preposition: str, subject: Entity) -> None:
        """To, for or with somebody else than the subject."""
        other = self.friend if subject.pronoun == self.hero.pronoun else self.hero
        draft.pieces.append(PREPOSITIONS[preposition])
        self._mention(draft, other)

    def _do(
        self,
        draft: Draft,
        subject: Entity,
        tense: str,
        adverb: str,
        *,
        brief: bool = False,
        implied: bool = False,
    ) -> None:
        """A verb without an object, perhaps with a manner or a place."""
        dice = self.dice
        verbs = self.habits.doings[subject.noun or SOMEBODY]
        draft.must(bool(verbs))
        verb = dice.pick(verbs)
        if implied:
            self._check(draft, verb, tense, subject.agreement, adverb)
            draft.imply(DONE_BY, verb, subject.noun)
            draft.pieces.append(verb_group(verb, tense, subject.agreement, adverb))
        else:
            self._verb(draft, verb, subject, tense, adverb)
        if verb is VERB["stay"]:
            self._place(draft)
        elif verb.english in MANNERS_OF and dice.chance(40):
            draft.pieces.append(MANNERS[dice.pick(MANNERS_OF[verb.english])])
        elif not brief:
            self._tail(draft, subject, tense)

    def _be(
        self, draft: Draft, subject: Entity, tense: str, adverb: str, *, implied: bool = False
    ) -> None:
        """To be so, or somewhere."""
        dice, noun = self.dice, subject.noun
        draft.must(implied or not (draft.event or draft.vague))  # des chèvres sont vieilles: no
        draft.pieces.append(to_be(tense, subject.agreement, adverb))
        somewhere = not implied and (noun is None or noun.kind != "place") and dice.chance(25)
        if somewhere or subject is MYSELF:  # I am tired: fatigué or fatiguée?
            self._place(draft)
            return
        adjective = dice.pick(self.habits.adjectives[noun or SOMEBODY])
        # Small is no reason to run, nor is anybody often small.
        lasting = adjective.before or (adjective.colour and subject.kind != "thing")
        fleeting = implied or draft.timed or adverb not in ("", "not")
        draft.must(noun not in draft.described and not (lasting and fleeting))
        draft.say(adjective)
        (draft.imply if implied else draft.combine)(DESCRIBED, adjective, noun)
        degree = "" if adjective.colour else dice.pick(self.habits.degrees)
        draft.must(degree != "rather" or adverb not in NEGATIVE)
        draft.pieces.append(quality(adjective, subject.agreement, DEGREES.get(degree)))

    def _tail(self, draft: Draft, subject: Entity, tense: str) -> None:
        """Where, with whom, or when."""
        dice = self.dice
        if not dice.chance(self.habits.extended):
            return
        if dice.chance(60):
            self._place(draft)
        elif dice.chance(50) and subject.kind == "person":
            self._party(draft, "with", subject)
        elif not draft.timed:
            draft.pieces.append(OPENERS[dice.pick(CLOSERS[tense])].piece)

    def _place(self, draft: Draft, preposition: str = "") -> None:
        """A place of the story; without a preposition, somewhere in, at, near or behind it."""
        dice = self.dice
        noun = dice.pick(self.places) if dice.chance(70) else self._any("place")
        draft.must(not preposition or noun not in NO_WAY)
        piece = PREPOSITIONS.get(preposition) or inside(noun)
        if not preposition:
            if noun in ONLY_NEAR or dice.chance(22):
                piece = PREPOSITIONS["near"]
            elif noun in BUILT and dice.chance(18):
                piece = PREPOSITIONS["behind"]
        draft.pieces.append(piece)
        self._mention(draft, entity(noun, False), dice.pick(KNOWN if preposition else OF_PLACES))
