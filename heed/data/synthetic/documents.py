"""Documents of the synthetic corpus: short stories of one speaker with recurring entities.

The entities recur, so the order of the sentences carries information: a new person is a man, then
the man, then he. A sentence that its split may not hold is drawn again.
"""

from __future__ import annotations

from heed.data.synthetic.clauses import GIFTS, ClauseGenerator
from heed.data.synthetic.lexicon import HERS, HIS, VERB
from heed.data.synthetic.phrases import (
    COMMA,
    NEGATIVE,
    PAST,
    PRESENT,
    SUBJECT_PRONOUNS,
    RenderedSentence,
    parse_phrase,
    render_sentence,
    verb_group,
)
from heed.data.synthetic.random_choices import (
    DONE_BY,
    DONE_TO,
    MYSELF,
    RejectedDraftError,
    Sampler,
    SentenceDraft,
    named_person,
)
from heed.data.synthetic.speakers import OPENERS, STYLES

AND = parse_phrase("and/CONJ", "et/CONJ", "0-0")
BUT = parse_phrase("but/CONJ", "mais/CONJ", "0-0")
BECAUSE = parse_phrase("because/SCONJ", "parce/SCONJ que/SCONJ", "0-0 0-1")
WHEN = parse_phrase("when/SCONJ", "quand/SCONJ", "0-0")
I_THINK = parse_phrase(
    "I/PRON think/VERB that/SCONJ", "je/PRON pense/VERB que/SCONJ", "0-0 1-1 2-2"
)
I_KNOW = parse_phrase("I/PRON know/VERB that/SCONJ", "je/PRON sais/VERB que/SCONJ", "0-0 1-1 2-2")
SAYS = parse_phrase("says/VERB that/SCONJ", "dit/VERB que/SCONJ", "0-0 1-1")
SAY = parse_phrase("say/VERB that/SCONJ", "disent/VERB que/SCONJ", "0-0 1-1")

# After these the imperfect would be unnatural: soudain elle voulait.
EVENTS = frozenset({"suddenly", "then", "finally", "one day"})
SHORTEST, LONGEST = 3, 20  # English words in a sentence
# Actions on an object just taken, found or seen.
_NEXT = ("eat", "prepare", "read", "take", "carry", "close", "break", "hide", "wash", "visit")
NEXT = frozenset(VERB[word] for word in (*_NEXT, "follow", "watch", "draw"))


class Document(ClauseGenerator):
    """One document: a speaker, a topic, its entities, and its sentences in order."""

    def __init__(self, split: str, seed: int, document: int) -> None:
        # The wording of this key decides every draw: changing it changes the corpus.
        sampler = Sampler(f"heed world {seed} {split} {document}")
        style = sampler.pick(STYLES)
        feminine = sampler.chance(50)
        name = named_person(sampler.pick(HERS if feminine else HIS), feminine)
        super().__init__(sampler, style, name if sampler.chance(35) else None)
        self.split = split
        self.tense = sampler.pick(style.tenses)

    def next_sentence(self) -> RenderedSentence:
        """The next sentence that the split may hold.

        The more combinations a sentence has, the likelier one of them is held out for dev or test.
        So there a sentence is accepted with probability one over their number, or dev and test
        sentences would be much longer than those of training.
        """
        while True:
            draft = SentenceDraft(self.split)
            try:
                self._draw_sentence(draft)
            except RejectedDraftError:
                continue
            fits = draft.has_own_combination and SHORTEST <= draft.length() <= LONGEST
            if fits and (self.split == "train" or self.sampler.chance(100 // draft.combinations)):
                break
        self.seen.update(draft.mentioned)
        self.sentence_count += 1
        return render_sentence(draft.phrases)

    def _draw_sentence(self, draft: SentenceDraft) -> None:
        sampler, style = self.sampler, self.style
        tense = self.tense if sampler.chance(75) else sampler.pick(style.tenses)
        form = sampler.pick(style.forms)
        if form == "when":
            self._draw_when(draft)
            return
        if form == "frame":
            self._add_frame(draft)
        elif sampler.chance(style.opened):
            word = sampler.pick(style.openers[tense])
            opener = OPENERS[word]
            draft.event = tense == PAST and word in EVENTS
            draft.phrases.append(opener.phrase)
            draft.timed, draft.dated = len(opener.tenses) < 3, len(opener.tenses) == 1
            if opener.comma:
                draft.phrases.append(COMMA)
        if form == "pair":
            self._draw_pair(draft, tense)
        elif form in ("because", "but"):
            self._draw_argument(draft, tense, form)
        else:
            subject, definite = self._add_subject(draft, tense)
            self._add_predicate(draft, subject, tense, self._draw_adverb(draft, definite))

    # Whole sentences

    def _draw_when(self, draft: SentenceDraft) -> None:
        """A when-sentence in the present; in the future, English and French differ in tense."""
        draft.phrases.append(WHEN)
        draft.related = True
        for ending in (COMMA, None):
            subject, definite = self._add_subject(draft, PRESENT, things=False)
            self._add_predicate(
                draft, subject, PRESENT, self._draw_adverb(draft, definite), brief=True
            )
            if ending:
                draft.phrases.append(ending)

    def _add_frame(self, draft: SentenceDraft) -> None:
        """I think that, I know that, a person says that."""
        if self.sampler.chance(50):
            draft.phrases.append(self.sampler.pick((I_THINK, I_KNOW)))
        else:
            sayer = self.sampler.pick((self.hero, self.friend))
            self._add_mention(draft, sayer, "the")
            draft.phrases.append(SAY if sayer.agreement.plural else SAYS)

    def _draw_pair(self, draft: SentenceDraft, tense: str) -> None:
        """The girl takes the apple and eats it: the pronoun refers to the first object."""
        subject, _ = self._add_subject(draft, tense, things=False)
        first, noun, target = self._add_transitive(draft, subject, tense, "", simple=True)
        possible = self.style.actions[subject.kind, noun]
        fitting = [verb for verb in possible if verb in NEXT and verb is not first]
        giving = subject.kind == "person" and noun.kind in GIFTS and self.sampler.chance(15)
        draft.require(bool(fitting) and first is not VERB["eat"])
        draft.check_pronoun(target, besides=subject)
        draft.dated = True  # by the first verb
        second = VERB["give"] if giving else self.sampler.pick(fitting)
        self._check_verb(draft, second, tense, subject.agreement, "", target.agreement)
        draft.note_implied(DONE_TO, second, noun)
        draft.note_implied(DONE_BY, second, subject.noun)
        pronoun = {"he": "him", "she": "her", "they": "them"}.get(target.pronoun, "it")
        group = verb_group(second, tense, subject.agreement, "", pronoun, target.agreement)
        draft.phrases += (AND, group)
        if giving:
            self._add_party(draft, "to", subject)

    def _draw_argument(self, draft: SentenceDraft, tense: str, form: str) -> None:
        """A clause, because or but, and a clause whose subject is a pronoun."""
        sampler = self.sampler
        subject, definite = self._add_subject(draft, tense, things=False)
        draft.related = True
        target, adverb = None, self._draw_adverb(draft, definite)
        if sampler.chance(60):
            *_, target = self._add_transitive(draft, subject, tense, adverb, simple=True)
        else:
            self._add_intransitive(draft, subject, tense, adverb, brief=True)
        draft.phrases.append(BECAUSE if form == "because" else BUT)
        about = subject
        if target and target.kind == "thing" and adverb not in NEGATIVE and sampler.chance(40):
            about = target
        draft.check_pronoun(about)
        denied = form == "but" and adverb not in NEGATIVE and sampler.chance(75)
        adverb = sampler.pick(("not", "not", "never")) if denied else ""
        draft.phrases.append(SUBJECT_PRONOUNS[about.pronoun, about.agreement.feminine])
        if about is MYSELF or (form == "but" and about is subject and sampler.chance(50)):
            draft.require(form == "but")  # because I am tired: fatigué or fatiguée?
            self._add_intransitive(draft, about, tense, adverb, brief=True, implied=True)
        else:
            self._add_copula(draft, about, tense, adverb, implied=True)
