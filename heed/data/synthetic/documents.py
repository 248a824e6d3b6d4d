"""Little stories: sentences one after the other, by one speaker, of one topic and cast.

The cast keeps coming back, so the order of the sentences carries information: somebody new is
a man, then the man, then he. A sentence that its split may not hold is drawn again.
"""

from __future__ import annotations

from heed.data.synthetic.clauses import GIFTS, Teller
from heed.data.synthetic.lexicon import HERS, HIS, VERB
from heed.data.synthetic.phrases import (
    COMMA,
    NEGATIVE,
    PAST,
    PRESENT,
    SUBJECT_PRONOUNS,
    Printed,
    phrase,
    printed,
    verb_group,
)
from heed.data.synthetic.random_choices import (
    DONE_BY,
    DONE_TO,
    MYSELF,
    Dice,
    Draft,
    UnsuitableError,
    named,
)
from heed.data.synthetic.speakers import HABITS, OPENERS

AND = phrase("and/CONJ", "et/CONJ", "0-0")
BUT = phrase("but/CONJ", "mais/CONJ", "0-0")
BECAUSE = phrase("because/SCONJ", "parce/SCONJ que/SCONJ", "0-0 0-1")
WHEN = phrase("when/SCONJ", "quand/SCONJ", "0-0")
I_THINK = phrase("I/PRON think/VERB that/SCONJ", "je/PRON pense/VERB que/SCONJ", "0-0 1-1 2-2")
I_KNOW = phrase("I/PRON know/VERB that/SCONJ", "je/PRON sais/VERB que/SCONJ", "0-0 1-1 2-2")
SAYS = phrase("says/VERB that/SCONJ", "dit/VERB que/SCONJ", "0-0 1-1")
SAY = phrase("say/VERB that/SCONJ", "disent/VERB que/SCONJ", "0-0 1-1")

# After these the imperfect would be odd: soudain elle voulait.
EVENTS = frozenset({"suddenly", "then", "finally", "one day"})
SHORTEST, LONGEST = 3, 20  # English words in a sentence
# What one does with a thing just taken, found or seen.
_NEXT = ("eat", "prepare", "read", "take", "carry", "close", "break", "hide", "wash", "visit")
NEXT = frozenset(VERB[word] for word in (*_NEXT, "follow", "watch", "draw"))


class Story(Teller):
    """One document: a speaker, a topic, a cast, and its sentences in order."""

    def __init__(self, split: str, seed: int, document: int) -> None:
        dice = Dice(f"heed world {seed} {split} {document}")
        habits = dice.pick(HABITS)
        feminine = dice.chance(50)
        name = named(dice.pick(HERS if feminine else HIS), feminine)
        super().__init__(dice, habits, name if dice.chance(35) else None)
        self.split = split
        self.tense = dice.pick(habits.tenses)

    def tell(self) -> Printed:
        """The next sentence that the split may hold.

        The more combinations a sentence has, the likelier one of them is kept for dev or test.
        There it is taken one time in so many, or their sentences would be much longer than
        those of training.
        """
        while True:
            draft = Draft(self.split)
            try:
                self._sentence(draft)
            except UnsuitableError:
                continue
            fits = draft.kept and SHORTEST <= draft.length() <= LONGEST
            if fits and (self.split == "train" or self.dice.chance(100 // draft.combinations)):
                break
        self.seen.update(draft.mentioned)
        self.told += 1
        return printed(draft.pieces)

    def _sentence(self, draft: Draft) -> None:
        dice, habits = self.dice, self.habits
        tense = self.tense if dice.chance(75) else dice.pick(habits.tenses)
        form = dice.pick(habits.forms)
        if form == "when":
            self._when(draft)
            return
        if form == "frame":
            self._frame(draft)
        elif dice.chance(habits.opened):
            word = dice.pick(habits.openers[tense])
            opener = OPENERS[word]
            draft.event = tense == PAST and word in EVENTS
            draft.pieces.append(opener.piece)
            draft.timed, draft.dated = len(opener.tenses) < 3, len(opener.tenses) == 1
            if opener.comma:
                draft.pieces.append(COMMA)
        if form == "pair":
            self._pair(draft, tense)
        elif form in ("because", "but"):
            self._argument(draft, tense, form)
        else:
            subject, settled = self._subject(draft, tense)
            self._predicate(draft, subject, tense, self._adverb(draft, settled))

    # Whole sentences

    def _when(self, draft: Draft) -> None:
        """Present only: of the future, English and French say it in different tenses."""
        draft.pieces.append(WHEN)
        draft.related = True
        for ending in (COMMA, None):
            subject, settled = self._subject(draft, PRESENT, things=False)
            self._predicate(draft, subject, PRESENT, self._adverb(draft, settled), brief=True)
            if ending:
                draft.pieces.append(ending)

    def _frame(self, draft: Draft) -> None:
        """I think that, I know that, somebody says that."""
        if self.dice.chance(50):
            draft.pieces.append(self.dice.pick((I_THINK, I_KNOW)))
        else:
            sayer = self.dice.pick((self.hero, self.friend))
            self._mention(draft, sayer, "the")
            draft.pieces.append(SAY if sayer.agreement.plural else SAYS)

    def _pair(self, draft: Draft, tense: str) -> None:
        """The girl takes the apple and eats it: the pronoun stands for the first object."""
        subject, _ = self._subject(draft, tense, things=False)
        first, noun, target = self._act(draft, subject, tense, "", simple=True)
        possible = self.habits.actions[subject.kind, noun]
        fitting = [verb for verb in possible if verb in NEXT and verb is not first]
        giving = subject.kind == "person" and noun.kind in GIFTS and self.dice.chance(15)
        draft.must(bool(fitting) and first is not VERB["eat"])
        draft.refer(target, besides=subject)
        draft.dated = True  # by the first verb
        second = VERB["give"] if giving else self.dice.pick(fitting)
        self._check(draft, second, tense, subject.agreement, "", target.agreement)
        draft.imply(DONE_TO, second, noun)
        draft.imply(DONE_BY, second, subject.noun)
        pronoun = {"he": "him", "she": "her", "they": "them"}.get(target.pronoun, "it")
        group = verb_group(second, tense, subject.agreement, "", pronoun, target.agreement)
        draft.pieces += (AND, group)
        if giving:
            self._party(draft, "to", subject)

    def _argument(self, draft: Draft, tense: str, form: str) -> None:
        """A clause, because or but, and a clause on a pronoun for its subject or its object."""
        dice = self.dice
        subject, settled = self._subject(draft, tense, things=False)
        draft.related = True
        target, adverb = None, self._adverb(draft, settled)
        if dice.chance(60):
            *_, target = self._act(draft, subject, tense, adverb, simple=True)
        else:
            self._do(draft, subject, tense, adverb, brief=True)
        draft.pieces.append(BECAUSE if form == "because" else BUT)
        about = subject
        if target and target.kind == "thing" and adverb not in NEGATIVE and dice.chance(40):
            about = target
        draft.refer(about)
        denied = form == "but" and adverb not in NEGATIVE and dice.chance(75)
        adverb = dice.pick(("not", "not", "never")) if denied else ""
        draft.pieces.append(SUBJECT_PRONOUNS[about.pronoun, about.agreement.feminine])
        if about is MYSELF or (form == "but" and about is subject and dice.chance(50)):
            draft.must(form == "but")  # because I: tired as a man or as a woman?
            self._do(draft, about, tense, adverb, brief=True, implied=True)
        else:
            self._be(draft, about, tense, adverb, implied=True)
