"""Clauses of the synthetic corpus: subject, predicate, object, place, companion.

`ClauseGenerator` adds the phrases of a clause to a draft one by one. It generates only English that
determines the French: where it would not (I went: allé or allée?), the draft is rejected and
another is drawn.
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
    select_nouns,
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
    name_phrase,
    noun_phrase,
    place_preposition,
    predicate_adjective,
    to_be,
    verb_group,
)
from heed.data.synthetic.random_choices import (
    DESCRIBED,
    DONE_BY,
    DONE_TO,
    MYSELF,
    Entity,
    Sampler,
    SentenceDraft,
    Word,
    noun_entity,
)
from heed.data.synthetic.speakers import (
    CLOSERS,
    DEGREES,
    DETERMINERS,
    KNOWN,
    MANNERS,
    OF_PLACES,
    OPENERS,
    SpeakerStyle,
    expand_weights,
)

DEFINITE = frozenset(
    {"the", "this", "my", "his", "her"}
)  # determiners of subjects that a negation fits
RELATABLE = frozenset({"the", "this", "a", "two", "three", "four"})

PREDICATES = {
    "person": expand_weights({"act": 50, "offer": 11, "do": 15, "move": 13, "be": 11}),
    "animal": expand_weights({"act": 46, "do": 26, "move": 10, "be": 18}),
    "thing": expand_weights({"be": 9, "do": 1}),
    "I": expand_weights({"act": 68, "offer": 10, "do": 11, "move": 7, "be": 4}),
}
SUBJECTS = expand_weights({"hero": 44, "friend": 24, "beast": 22, "thing": 10})
MANNERS_OF = {
    "run": ("slowly", "quickly"),
    "dance": ("slowly", "quickly"),
    "work": ("slowly", "quickly"),
    "sing": ("softly",),
    "laugh": ("softly",),
}
MADE_FOR = tuple(VERB[word] for word in ("prepare", "buy", "draw", "find", "take"))
GIFTS = ("food", "text", "object")
SOMEBODY = next(noun for noun in NOUNS if noun.english == "man")  # stands for he, she and names
PLACES = select_nouns("place")
NO_WAY = select_nouns("tree island")  # places that go and come do not take
OTHERS = tuple(noun for noun in NOUNS if noun.kind == "person" and noun not in FAMILY)
_BY_KIND = {
    (kind, topic): tuple(n for n in NOUNS if n.kind == kind and n.topic == topic)
    for kind in ("person", "animal", "food", "text", "object", "place")
    for topic in TOPICS
}


class ClauseGenerator:
    """Generator of clauses for one speaker's style, topic and set of entities."""

    def __init__(self, sampler: Sampler, style: SpeakerStyle, hero: Entity | None) -> None:
        self.sampler, self.style = sampler, style
        self.topic = sampler.pick(style.topics)
        self.hero = hero or noun_entity(self._random_noun("person"), False)
        friend, beast = self._random_noun("person"), self._random_noun("animal")
        self.friend = noun_entity(friend, not friend.single and sampler.chance(60))
        self.beast = noun_entity(beast, sampler.chance(55))
        self.things = [self._random_noun(sampler.pick(GIFTS)) for _ in range(4)]
        self.places = [self._random_noun("place") for _ in range(2)]
        self.targets = (*self.things * 2, *[friend, beast] * 2, self.places[0])
        self.seen: set[Word] = set()
        self.sentence_count = 0

    def _random_noun(self, kind: str) -> Noun:
        """A noun of a kind, mostly of the document's topic."""
        topic = self.topic if self.sampler.chance(75) else self.sampler.pick(TOPICS)
        return self.sampler.pick(_BY_KIND[kind, topic])

    # Who

    def _add_subject(
        self, draft: SentenceDraft, tense: str, *, things: bool = True
    ) -> tuple[Entity, bool]:
        """Add the subject of the clause; also returns whether a negation fits it."""
        sampler = self.sampler
        draft.vague = False
        if sampler.chance(self.style.myself):
            draft.phrases.append(SUBJECT_PRONOUNS["I", False])
            return MYSELF, True
        role, determiner = sampler.pick(SUBJECTS), ""
        if role == "thing" and things:
            determiner = sampler.pick(KNOWN)
            noun = sampler.pick((*self.things, *self.places))
            about = noun_entity(noun, not noun.single and sampler.chance(30))
        else:
            about = {"friend": self.friend, "beast": self.beast}.get(role, self.hero)
        if about is self.hero and self.sentence_count and sampler.chance(45):
            pronoun = SUBJECT_PRONOUNS[about.pronoun, about.agreement.feminine]
            draft.phrases.append(pronoun)
            return about._replace(noun=None), True
        determiner = self._add_mention(draft, about, determiner)
        if determiner in RELATABLE and sampler.chance(self.style.related):
            self._add_relative_clause(draft, about, tense)
        draft.vague = determiner == "a"
        return about, determiner in DEFINITE

    def _add_mention(self, draft: SentenceDraft, about: Entity, determiner: str = "") -> str:
        """Add a name, or a noun with its determiner and adjectives; returns the determiner.

        A name, or a noun with an owner, counts as "my": it is definite and takes no relative
        clause.
        """
        noun = about.noun
        draft.mention(about)
        if noun is None:
            draft.phrases.append(name_phrase(about.name))
            return "my"
        many = about.agreement.plural
        determiner = determiner or self._draw_determiner(noun, many)
        adjectives = self._draw_adjectives(draft, noun)
        draft.phrases.append(noun_phrase(determiner, adjectives, noun, many))
        of_whom = determiner == "the" and (
            noun in FAMILY or (noun.kind == "text" and self.sampler.chance(20))
        )
        if of_whom:
            owner = noun_entity(self.sampler.pick(OTHERS), self.sampler.chance(25))
            draft.mention(owner)
            draft.phrases.append(PREPOSITIONS["of"])
            draft.phrases.append(noun_phrase("the", (), owner.noun, owner.agreement.plural))
            return "my"
        return determiner

    def _draw_determiner(self, noun: Noun, many: bool) -> str:
        whose = "thing"
        if noun.kind == "person":
            whose = "family" if noun in FAMILY else "person"
        return self.sampler.pick(DETERMINERS[whose, noun in self.seen, many])

    def _draw_adjectives(self, draft: SentenceDraft, noun: Noun) -> tuple[Adjective, ...]:
        sampler, style = self.sampler, self.style
        if not sampler.chance(style.described):
            return ()
        first = sampler.pick(style.adjectives[noun])
        draft.note_combination(DESCRIBED, first, noun)
        draft.add_word(first)
        draft.described.add(noun)
        if first.before and style.colors[noun] and sampler.chance(25):
            color = sampler.pick(style.colors[noun])
            draft.note_combination(DESCRIBED, color, noun)
            draft.add_word(color)
            return first, color
        return (first,)

    def _add_relative_clause(self, draft: SentenceDraft, about: Entity, tense: str) -> None:
        """Add a relative clause (who sleeps, that the king sees), at most one per sentence."""
        if draft.related or about.noun is None:
            return
        draft.related = True
        sampler = self.sampler
        tense = tense if sampler.chance(80) else PRESENT
        adverb = self._draw_adverb(draft, True)
        if about.kind != "thing" and sampler.chance(50):
            draft.phrases.append(WHO if about.kind == "person" else THAT_DOES)
            self._add_predicate(draft, about, tense, adverb, brief=True)
            return
        doer = sampler.pick((self.hero, self.hero, self.friend, self.beast, MYSELF))
        verbs = self.style.actions[doer.kind, about.noun]
        draft.require(bool(verbs))
        verb = sampler.pick(verbs)
        draft.require(verb is not VERB["have"])  # hard to parse: the wolf that I had ran
        self._check_verb(draft, verb, tense, doer.agreement, adverb, about.agreement)
        draft.phrases.append(THAT_IS_DONE)
        if doer is MYSELF or (doer is self.hero and self.sentence_count and sampler.chance(40)):
            pronoun = SUBJECT_PRONOUNS[doer.pronoun, doer.agreement.feminine]
            draft.phrases.append(pronoun)
        else:
            self._add_mention(draft, doer)
            draft.note_combination(DONE_BY, verb, doer.noun)
        draft.note_combination(DONE_TO, verb, about.noun)
        group = verb_group(verb, tense, doer.agreement, adverb, "", about.agreement)
        draft.phrases.append(group)

    # Does what

    def _draw_adverb(self, draft: SentenceDraft, definite: bool) -> str:
        """Draw not, never, often, always or nothing.

        An indefinite subject takes no negation (a man does not sleep), and a sentence has one
        expression of time.
        """
        adverb = self.sampler.pick(self.style.adverbs)
        if not definite or (draft.timed and adverb != "not"):
            return ""
        draft.timed = draft.timed or adverb not in ("", "not")
        return adverb

    def _check_verb(
        self,
        draft: SentenceDraft,
        verb: Verb,
        tense: str,
        subject: Agreement,
        adverb: str,
        moved: Agreement | None = None,
    ) -> None:
        """Reject ambiguous English, and plural participles before avoir.

        They read: present or past? I went: allé or allée? Plural agreement with an object before
        the verb (vus, vues) would double the participles for few examples each.
        """
        draft.add_word(verb)
        bare = tense != FUTURE and adverb != "not" and (subject.plural or subject.first_person)
        draft.require(not bare or verb.past != verb.english or draft.dated)
        if tense != PAST or verb.state:
            return
        draft.require(not (verb.etre and subject.first_person))
        draft.require(moved is None or not moved.plural)

    def _add_predicate(
        self, draft: SentenceDraft, subject: Entity, tense: str, adverb: str, *, brief: bool = False
    ) -> None:
        """Add what the subject does or is; a brief predicate has no further phrases."""
        sampler = self.sampler
        does = sampler.pick(PREDICATES["I" if subject is MYSELF else subject.kind])
        if does == "be":
            self._add_copula(draft, subject, tense, adverb)
        elif does == "do":
            self._add_intransitive(draft, subject, tense, adverb, brief=brief)
        elif does == "move":
            move = sampler.pick((VERB["go"], VERB["go"], VERB["come"]))
            self._add_verb(draft, move, subject, tense, adverb)
            self._add_place(draft, "to" if move is VERB["go"] else "from")
        elif does == "offer" and not brief:
            self._add_ditransitive(draft, subject, tense, adverb)
        else:
            verb, noun, _ = self._add_transitive(draft, subject, tense, adverb, simple=brief)
            if not brief and not (verb.state or noun in PLACES):
                self._add_adjunct(draft, subject, tense)

    def _add_verb(
        self, draft: SentenceDraft, verb: Verb, subject: Entity, tense: str, adverb: str
    ) -> None:
        self._check_verb(draft, verb, tense, subject.agreement, adverb)
        draft.require(not (draft.event and verb.state))
        draft.note_combination(DONE_BY, verb, subject.noun)
        draft.phrases.append(verb_group(verb, tense, subject.agreement, adverb))

    def _add_transitive(
        self, draft: SentenceDraft, subject: Entity, tense: str, adverb: str, *, simple: bool
    ) -> tuple[Verb, Noun, Entity]:
        """Add a verb and its object, and return them; a simple object has no relative clause."""
        sampler = self.sampler
        noun = sampler.pick(self.targets)
        if sampler.chance(25):
            noun = self._random_noun(sampler.pick(GIFTS))
        verbs = self.style.actions[subject.kind, noun]
        draft.require(bool(verbs))
        verb = sampler.pick(verbs)
        self._add_verb(draft, verb, subject, tense, adverb)
        draft.note_combination(DONE_TO, verb, noun)
        target, determiner = self._add_object(draft, noun, verb, adverb)
        if not simple and determiner in RELATABLE and sampler.chance(self.style.related):
            self._add_relative_clause(draft, target, tense)
        return verb, noun, target

    def _add_object(
        self, draft: SentenceDraft, noun: Noun, verb: Verb, adverb: str
    ) -> tuple[Entity, str]:
        """Add the object: after a negation, a becomes de; like needs a definite object."""
        sampler = self.sampler
        target = noun_entity(noun, not noun.single and sampler.chance(38))
        determiner = self._draw_determiner(noun, target.agreement.plural)
        if noun.kind == "place":
            determiner = sampler.pick(OF_PLACES)
        elif verb is VERB["like"] and determiner not in DEFINITE:
            determiner = sampler.pick(KNOWN)
        if determiner == "a" and adverb in NEGATIVE:
            determiner = "the" if noun.kind in ("person", "place") else "no"
        return target, self._add_mention(draft, target, determiner)

    def _add_ditransitive(
        self, draft: SentenceDraft, subject: Entity, tense: str, adverb: str
    ) -> None:
        """Add a verb with an indirect object: give something to a person, or find it for one."""
        sampler = self.sampler
        noun = sampler.pick(self.things)
        verb = VERB["give"] if sampler.chance(60) else sampler.pick(MADE_FOR)
        draft.require(noun in verb.objects)
        self._add_verb(draft, verb, subject, tense, adverb)
        draft.note_combination(DONE_TO, verb, noun)
        self._add_object(draft, noun, verb, adverb)
        self._add_party(draft, "to" if verb is VERB["give"] else "for", subject)

    def _add_party(self, draft: SentenceDraft, preposition: str, subject: Entity) -> None:
        """Add to, for or with, and a person other than the subject."""
        other = self.friend if subject.pronoun == self.hero.pronoun else self.hero
        draft.phrases.append(PREPOSITIONS[preposition])
        self._add_mention(draft, other)

    def _add_intransitive(
        self,
        draft: SentenceDraft,
        subject: Entity,
        tense: str,
        adverb: str,
        *,
        brief: bool = False,
        implied: bool = False,
    ) -> None:
        """Add an intransitive verb, perhaps with a manner or a place."""
        sampler = self.sampler
        verbs = self.style.doings[subject.noun or SOMEBODY]
        draft.require(bool(verbs))
        verb = sampler.pick(verbs)
        if implied:
            self._check_verb(draft, verb, tense, subject.agreement, adverb)
            draft.note_implied(DONE_BY, verb, subject.noun)
            draft.phrases.append(verb_group(verb, tense, subject.agreement, adverb))
        else:
            self._add_verb(draft, verb, subject, tense, adverb)
        if verb is VERB["stay"]:
            self._add_place(draft)
        elif verb.english in MANNERS_OF and sampler.chance(40):
            draft.phrases.append(MANNERS[sampler.pick(MANNERS_OF[verb.english])])
        elif not brief:
            self._add_adjunct(draft, subject, tense)

    def _add_copula(
        self,
        draft: SentenceDraft,
        subject: Entity,
        tense: str,
        adverb: str,
        *,
        implied: bool = False,
    ) -> None:
        """Add be with an adjective or a place."""
        sampler, noun = self.sampler, subject.noun
        draft.require(implied or not (draft.event or draft.vague))  # des chèvres sont vieilles: no
        draft.phrases.append(to_be(tense, subject.agreement, adverb))
        somewhere = not implied and (noun is None or noun.kind != "place") and sampler.chance(25)
        if somewhere or subject is MYSELF:  # I am tired: fatigué or fatiguée?
            self._add_place(draft)
            return
        adjective = sampler.pick(self.style.adjectives[noun or SOMEBODY])
        # Lasting properties are no reason for an action, and do not go with often.
        lasting = adjective.before or (adjective.color and subject.kind != "thing")
        fleeting = implied or draft.timed or adverb not in ("", "not")
        draft.require(noun not in draft.described and not (lasting and fleeting))
        draft.add_word(adjective)
        (draft.note_implied if implied else draft.note_combination)(DESCRIBED, adjective, noun)
        degree = "" if adjective.color else sampler.pick(self.style.degrees)
        draft.require(degree != "rather" or adverb not in NEGATIVE)
        draft.phrases.append(predicate_adjective(adjective, subject.agreement, DEGREES.get(degree)))

    def _add_adjunct(self, draft: SentenceDraft, subject: Entity, tense: str) -> None:
        """Add a place, a companion or a time."""
        sampler = self.sampler
        if not sampler.chance(self.style.extended):
            return
        if sampler.chance(60):
            self._add_place(draft)
        elif sampler.chance(50) and subject.kind == "person":
            self._add_party(draft, "with", subject)
        elif not draft.timed:
            draft.phrases.append(OPENERS[sampler.pick(CLOSERS[tense])].phrase)

    def _add_place(self, draft: SentenceDraft, preposition: str = "") -> None:
        """Add a place of the document; without a preposition: in, at, near or behind it."""
        sampler = self.sampler
        noun = sampler.pick(self.places) if sampler.chance(70) else self._random_noun("place")
        draft.require(not preposition or noun not in NO_WAY)
        phrase = PREPOSITIONS.get(preposition) or place_preposition(noun)
        if not preposition:
            if noun in ONLY_NEAR or sampler.chance(22):
                phrase = PREPOSITIONS["near"]
            elif noun in BUILT and sampler.chance(18):
                phrase = PREPOSITIONS["behind"]
        draft.phrases.append(phrase)
        self._add_mention(
            draft, noun_entity(noun, False), sampler.pick(KNOWN if preposition else OF_PLACES)
        )
