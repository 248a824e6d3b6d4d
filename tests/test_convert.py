"""`heed import` and `heed export`: runs made of folders of `transformers`, and the other way."""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from foreign import CASES, make, saved, transformers
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers, trainers

from heed import Classifier, Translator
from heed.cli.main import main
from heed.config import TASKS, Recipe
from heed.config.model import PRESET_TASKS
from heed.data import synthetic
from heed.data.tokenizers.pretrained import PretrainedTokenizer
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.export import FORMATS
from heed.export.support import describe_formats, other_ways, suggested_preset
from heed.models import build, huggingface
from heed.runs.labels import Calibration
from heed.runs.load import load_run
from heed.runs.run import Run

LINES = ["the old cat sat on the mat .", "a dog sees the cat !", "who are you ?"]
MARKS = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
SHAPE: dict[str, Any] = {
    "layers": 1,
    "width": 32,
    "heads": 2,
    "steps": 30,
    "lr": 3e-3,
    "batch_tokens": 512,
    "max_positions": 128,
    "max_length": 96,
}
ROLES = ("pad_token", "unk_token", "bos_token", "eos_token", "mask_token")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


class Answer:
    """What a command said, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class Heed:
    """`heed …`, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: str | Path) -> Answer:
        self.monkeypatch.setattr(sys, "argv", ["heed", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code
        captured = self.capsys.readouterr()
        return Answer(
            code if isinstance(code, int) else int(code is not None), captured.out, captured.err
        )


@pytest.fixture
def heed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Heed:
    return Heed(monkeypatch, capsys)


def with_tokenizer(folder: Path) -> int:
    """Words and special tokens, at other ids than ours; returns how many."""
    core = tokenizers.Tokenizer(models.WordLevel(unk_token=MARKS[1]))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    core.train_from_iterator(LINES, trainer)
    roles = dict(zip(ROLES, MARKS, strict=True))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=core, **roles)
    wrapped.save_pretrained(folder)
    return int(core.get_vocab_size())


def folder_of(name: str, folder: Path, **changes: Any) -> Path:
    """A tiny model with a tokenizer."""
    vocab = with_tokenizer(folder)
    saved(make(CASES[name], vocab_size=vocab, **changes), folder)
    return folder


# ---------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("name", ["bert-guesses", "roberta-classes", "gpt2-writes", "marian", "t5"])
def test_a_run_of_a_folder_and_a_folder_of_the_run(name: str, tmp_path: Path, heed: Heed) -> None:
    source = folder_of(name, tmp_path / "in")
    run, out = tmp_path / "run", tmp_path / "out"
    answer = heed("import", source, "--run", run)
    assert answer.code == 0, answer.err
    assert "with its tokenizer" in answer.out
    assert {"recipe.toml", "tokenizer.json", "model.safetensors", "environment.json"} <= {
        path.name for path in run.iterdir()
    }
    model, tokenizer, recipe = load_run(run, device="cpu")
    assert isinstance(tokenizer, PretrainedTokenizer)
    assert recipe.model == model.config
    assert heed("export", run, out, "--to", "hf").code == 0
    for file in ("config.json", "tokenizer_config.json"):
        assert json.loads((source / file).read_text()) == json.loads((out / file).read_text())
    before, after = (load_file(x / "model.safetensors") for x in (source, out))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    theirs = [transformers.AutoTokenizer.from_pretrained(x)(LINES).input_ids for x in (source, out)]
    assert theirs[0] == theirs[1]


def test_an_imported_translator_translates(tmp_path: Path, heed: Heed) -> None:
    """As `generate` does with the same weights and tokens."""
    source = folder_of("marian", tmp_path / "in")
    assert heed("import", source, "--run", tmp_path / "run").code == 0
    said = heed("translate", tmp_path / "run", *LINES, "--beam", "1").out.splitlines()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.MarianMTModel.from_pretrained(source).eval()
    for line, found in zip(LINES, said, strict=True):
        ids = tokenizer(line, add_special_tokens=False).input_ids
        inputs = torch.tensor([[*ids, model.config.eos_token_id]])
        most = 2 * len(ids) + 10
        banned = [[model.config.pad_token_id]]
        (row,) = model.generate(inputs, num_beams=1, max_new_tokens=most + 1, bad_words_ids=banned)
        ours = tokenizer.decode(row[1 : most + 1], skip_special_tokens=True)
        assert found.split() == ours.split()


def test_classes_without_names_are_numbered(tmp_path: Path, heed: Heed) -> None:
    """transformers calls them so, and does not write it down."""
    folder_of("bert-classes", tmp_path / "in")
    assert heed("import", tmp_path / "in", "--run", tmp_path / "run").code == 0
    assert heed("classify", tmp_path / "run", LINES[0]).out.startswith("LABEL_")


def test_classes_of_the_same_name_are_refused(tmp_path: Path, heed: Heed) -> None:
    """One would overwrite the other's probability."""
    folder_of("bert-classes", tmp_path / "in", id2label={0: "bad", 1: "good", 2: "bad"})
    answer = heed("import", tmp_path / "in", "--run", tmp_path / "run")
    assert (answer.code, "names several classes 'bad'" in answer.err) == (2, True)
    assert not (tmp_path / "run").exists()


def test_other_commands_read_such_a_run(tmp_path: Path, heed: Heed) -> None:
    names = {0: "bad", 1: "good", 2: "so so"}
    folder_of("bert-classes", tmp_path / "classes", id2label=names)
    folder_of("gpt2-writes", tmp_path / "writes")
    for name in ("classes", "writes"):
        assert heed("import", tmp_path / name, "--run", tmp_path / "runs" / name).code == 0
    runs = tmp_path / "runs"
    assert heed("classify", runs / "classes", LINES[0]).out.strip() in names.values()
    (tmp_path / "test.tsv").write_text("good\ta dog\nbad\tthe cat\n", encoding="utf-8")
    (tmp_path / "test.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    few = ("--bootstrap", "100", "--json")
    answer = heed("evaluate", runs / "classes", "--test", tmp_path / "test.tsv", *few)
    assert json.loads(answer.out)["texts"] == 2, answer.err
    answer = heed("evaluate", runs / "writes", "--test", tmp_path / "test.txt", *few)
    assert json.loads(answer.out)["texts"] == 3, answer.err
    for name, flags in (("classes", []), ("writes", []), ("writes", ["--split", "test"])):
        answer = heed("evaluate", runs / name, *flags)
        assert (answer.code, answer.err.count(".")) == (2, 2)
        assert "this run names no text to evaluate on. Name files with --test." in answer.err
    assert "finished" in heed("resume", runs / "writes").out
    assert len(json.loads(heed("runs", runs, "--json").out)) == 2


def test_a_folder_without_a_tokenizer(tmp_path: Path, heed: Heed) -> None:
    source = saved(make(CASES["gpt2-writes"]), tmp_path / "in")
    answer = heed("import", source, "--run", tmp_path / "run")
    assert answer.code == 0
    assert "without a tokenizer" in answer.out
    assert not (tmp_path / "run" / "tokenizer.json").exists()
    assert heed("export", tmp_path / "run", tmp_path / "out").code == 0
    before, after = (load_file(tmp_path / x / "model.safetensors") for x in ("in", "out"))
    assert all(torch.equal(before[key], after[key]) for key in before)
    answer = heed("generate", tmp_path / "run")
    assert answer.code == 2
    assert "tokenizer.json" in answer.err


def exported(folder: Path, heed: Heed, **shape: Any) -> tuple[Translator, Any, Any]:
    """A translator of Marian's kind that learnt the text there, and what transformers has of it."""
    mt = Translator.train(
        train=[folder / "train.en", folder / "train.fr"],
        dev=[folder / "dev.en", folder / "dev.fr"],
        run=folder / "run",
        device="cpu",
        preset="marian",
        **shape,
    )
    assert heed("export", folder / "run", folder / "out").code == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out")
    return mt, tokenizer, transformers.MarianMTModel.from_pretrained(folder / "out").eval()


def test_a_translator_trained_here(tmp_path: Path, heed: Heed) -> None:
    """Train, export, and write the same with transformers as with heed."""
    synthetic.write_corpus(tmp_path, train=100, dev=5, test=5, seed=0)
    mt, tokenizer, model = exported(tmp_path, heed, **SHAPE)
    for line in (tmp_path / "test.en").read_text().splitlines():
        read = tokenizer(line, return_tensors="pt")
        most = 2 * len(mt.tokenizer.encode(line)) + 10
        inputs = {"input_ids": read["input_ids"], "attention_mask": read["attention_mask"]}
        (row,) = model.generate(**inputs, num_beams=1, max_new_tokens=most + 1)
        found = tokenizer.decode(row[1 : most + 1], skip_special_tokens=True)
        assert found.split() == mt.translate([line])[0].split()


def test_generate_ends_where_heed_ends(tmp_path: Path, heed: Heed) -> None:
    """`generate` needs no arguments: the folder's configuration is enough, also for long texts."""
    for name, size in (("train", 100), ("dev", 5), ("test", 5)):
        for suffix, side in (("en", "english"), ("fr", "french")):
            said = [
                getattr(one, side)
                for one in synthetic.generate_sentences("train", 3 * size, seed=0)
            ]
            threes = (" ".join(said[i : i + 3]) + "\n" for i in range(0, 3 * size, 3))
            (tmp_path / f"{name}.{suffix}").write_text("".join(threes), encoding="utf-8")
    settings = SHAPE | {"kind": "word", "steps": 150, "batch_tokens": 1024}
    mt, tokenizer, model = exported(tmp_path, heed, **settings)
    lines, lengths = (tmp_path / "test.en").read_text().splitlines(), [0]
    for line, ours in zip(lines, mt.translations(lines), strict=True):
        read = tokenizer(line, return_tensors="pt")
        inputs = {"input_ids": read["input_ids"], "attention_mask": read["attention_mask"]}
        (row,) = model.generate(**inputs)
        found = tokenizer.decode(row, skip_special_tokens=True)
        if not ours.cut:  # heed's own limit is shorter, by the source
            assert found.split() == ours.text.split()
            lengths.append(len(row))
    assert max(lengths) > 21, "no long text was ended by the model"


def untrained(folder: Path, task: str, **tables: dict[str, Any]) -> Run:
    """A finished run that learnt nothing."""
    model = {"width": 16, "heads": 2, "layers": 1} | tables.pop("model", {})
    recipe = Recipe.of({"task": task, "model": model, **tables})
    run, words = Run.create(folder, recipe), Tokenizer.train(LINES, kind="word")
    words.save(run.tokenizer_path)
    weights = build(task, recipe.model, vocab=words.vocab_size).state_dict()
    run.write_environment({})
    save_file(weights, run.weights_path)
    return run


def test_generation_config_has_the_beam(tmp_path: Path, heed: Heed) -> None:
    decode = {"beam": 3, "length_penalty": 0.5, "early_stop": True}
    shape = {"norm_place": "post", "position": "sinusoidal"}
    run = untrained(tmp_path / "run", "translate", model=shape, decode=decode)
    assert heed("export", run.folder, tmp_path / "out").code == 0
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert (generation.num_beams, generation.length_penalty, generation.early_stopping) == (
        3,
        0.5,
        True,
    )
    assert heed("import", tmp_path / "out", "--run", tmp_path / "back").code == 0
    back = Run.open(tmp_path / "back").recipe().decode.model_dump()
    assert decode == {key: back[key] for key in decode}


def test_a_classifier_of_pairs_stays_one(tmp_path: Path, heed: Heed) -> None:
    """There and back twice, and by way of `transformers`."""
    rows = [f"{a}\t{b}\t{'same' if a == b else 'other'}\n" for a in "abcd" for b in "abcd"]
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\tlabel\n" + "".join(rows * 4))
    shape = {"norm_place": "post", "position": "learned", "embedding_norm": True}
    shape |= {"pooling": "first", "pooler": True, "kind": "word"}
    settings = SHAPE | shape
    Classifier.train(train=[tmp_path / "pairs.tsv"], run=tmp_path / "0", device="cpu", **settings)
    before = Classifier.load(tmp_path / "0", device="cpu")
    assert before.classes.pairs
    for number in range(2):
        out, back = tmp_path / f"out{number}", tmp_path / f"{number + 1}"
        assert heed("export", tmp_path / str(number), out).code == 0
        theirs = transformers.BertForSequenceClassification.from_pretrained(out)
        theirs.save_pretrained(out)
        assert heed("import", out, "--run", back).code == 0
        after = Classifier.load(back, device="cpu")
        assert after.classes == before.classes
        pairs = [("a", "b"), ("c", "c")]
        assert after.classify(pairs) == before.classify(pairs)
        assert heed("classify", back, "a\tb").out.split() == before.classify([("a", "b")])
    Calibration(2.5, "dev", 4, "hash").save(Run(tmp_path / "0"))
    calibrated = Classifier.load(tmp_path / "0", device="cpu").probabilities(pairs)
    assert calibrated[0] != pytest.approx(before.probabilities(pairs)[0], abs=1e-3)
    assert heed("export", tmp_path / "0", tmp_path / "calibrated").code == 0
    record = json.loads((tmp_path / "calibrated" / "calibration.json").read_text())
    assert (record["temperature"], record["applied_to_logits"]) == (2.5, True)
    assert heed("import", tmp_path / "calibrated", "--run", tmp_path / "again").code == 0
    again = Classifier.load(tmp_path / "again", device="cpu").probabilities(pairs)
    for one, other in zip(calibrated, again, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    huggingface.save(*huggingface.load(out), tmp_path / "single")  # as one that learnt single texts
    config = json.loads((tmp_path / "single" / "config.json").read_text())
    assert not huggingface.is_pair_classifier(config)


@pytest.mark.parametrize(
    ("task", "changes", "others"),
    [
        ("translate", {"position": "rope"}, ["ctranslate2", "onnx"]),
        ("translate", {"position": "sinusoidal", "qk_norm": True}, ["onnx"]),
        ("generate", {"position": "alibi"}, ["onnx"]),
        ("translate", {"family": "lstm"}, []),
    ],
)
def test_a_refusal_says_which_formats_take_it(
    task: str, changes: dict[str, Any], others: list[str], tmp_path: Path, heed: Heed
) -> None:
    run = untrained(tmp_path / "run", task, model=changes)
    out = tmp_path / "new" / "out"
    answer = heed("export", tmp_path / "run", out)
    assert answer.code == 2
    preset = "For --to hf, train with" in answer.err
    assert preset == ("family" not in changes)
    assert re.findall(r"--to (\w+)", answer.err) == others + ["hf"] * preset
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "no empty folder is left"
    for other in others:
        assert f"heed export {run.folder} {out} --to {other}" in answer.err
        if other == "ctranslate2" and find_spec(other) is not None:
            assert heed("export", run.folder, tmp_path / other, "--to", other).code == 0


def test_a_format_whose_packages_are_missing_is_not_said_to_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def advice(installed: str) -> str:
        found = {installed: object()}
        monkeypatch.setattr("heed.export.support.find_spec", found.get)
        return other_ways(Recipe.of({"task": "translate"}), tmp_path, Path("out"), "onnx")

    command = f"heed export {tmp_path} out --to ctranslate2."
    assert advice("ctranslate2").startswith(f"This works: {command}")
    install = "pip install '.[ctranslate2]' in the folder of heed's source"
    assert advice("nothing").startswith(f"After {install} this works: {command}")


@pytest.mark.parametrize("task", TASKS)
def test_a_dry_run_says_where_a_model_can_be_exported(task: str) -> None:
    for name in [name for name, tasks in PRESET_TASKS.items() if task in tasks]:
        masked = (task, name) == ("generate", "bert")
        tables = {"task": task, "model": {"preset": name}}
        train = {"train": {"objective": "masked"}} if masked else {}
        assert "--to hf" in describe_formats(Recipe.of(tables | train)).split(";")[0]
    default = Recipe.of({"task": task})
    assert f"model.preset={suggested_preset(default)}" in describe_formats(default)
    assert "--to onnx" in describe_formats(default)
    assert ("--to ctranslate2" in describe_formats(default)) == (task == "translate")


# ----------------------------------------------------------------------------------- bad input


def spoil(folder: Path, how: str) -> str:
    """Break a folder; returns what is to be said of it."""
    config, weights = folder / "config.json", folder / "model.safetensors"
    config_json = json.loads(config.read_text())
    held = load_file(weights)
    first = next(iter(held))
    if how == "another architecture":
        config_json["architectures"] = ["LlamaForCausalLM"]
        config.write_text(json.dumps(config_json))
        return "LlamaForCausalLM is not supported"
    if how == "no architecture":
        del config_json["architectures"]
        config.write_text(json.dumps(config_json))
        return "architectures does not name the class"
    if how == "no config":
        config.unlink()
        return "there is no config.json here"
    if how == "config that is no JSON":
        config.write_text("{")
        return "this file is not valid JSON"
    if how == "config that lies":
        config.write_text(json.dumps(config_json | {"hidden_size": 20}))
        return "the weights do not match config.json"
    if how == "config with nonsense":
        config.write_text(json.dumps(config_json | {"num_attention_heads": "many"}))
        return "num_attention_heads is 'many', which is not a whole number"
    if how == "config that no model can have":
        config.write_text(json.dumps(config_json | {"num_attention_heads": 5}))
        return "is not divisible by heads 5"
    if how == "another activation":
        config.write_text(json.dumps(config_json | {"hidden_act": "mish"}))
        return "hidden_act = 'mish' is not supported"
    if how == "a decoder":
        config.write_text(json.dumps(config_json | {"is_decoder": True}))
        return "is_decoder = True is not supported"
    if how == "a weight missing":
        save_file({key: x for key, x in held.items() if key != first}, weights)
        return "is missing"
    if how == "a wrong shape":
        save_file(held | {first: torch.zeros(3, 3)}, weights)
        return "has shape [3, 3], not"
    if how == "a pickle":
        weights.rename(folder / "pytorch_model.bin")
        return "this is a pickle"
    if how == "no weights":
        weights.unlink()
        return "model.safetensors is missing"
    if how == "half of the weights":
        weights.write_bytes(weights.read_bytes()[:-50])
        return "this is not a complete safetensors file"
    if how == "an index that leads out":
        weights.unlink()
        index = {"weight_map": {first: "../other.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return "weight_map does not name files"
    (folder / "tokenizer.json").write_text("{")
    return "tokenizer.json: this is not JSON"


SPOILT = [
    "another architecture",
    "no architecture",
    "no config",
    "config that is no JSON",
    "config that lies",
    "config with nonsense",
    "config that no model can have",
    "another activation",
    "a decoder",
    "a weight missing",
    "a wrong shape",
    "a pickle",
    "no weights",
    "half of the weights",
    "an index that leads out",
    "a broken tokenizer",
]


@pytest.mark.parametrize("how", SPOILT)
def test_a_bad_folder_is_one_sentence(how: str, tmp_path: Path, heed: Heed) -> None:
    source = folder_of("bert-guesses", tmp_path / "in")
    said = spoil(source, how)
    answer = heed("import", source, "--run", tmp_path / "run")
    assert answer.code == 2
    assert said in answer.err
    assert len(answer.err.strip().splitlines()) == 1
    assert "Traceback" not in answer.err
    assert not (tmp_path / "run").exists()


def test_what_is_no_folder(tmp_path: Path, heed: Heed) -> None:
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    for name, said in (
        (tmp_path / "nowhere", "there is no such folder"),
        (tmp_path / "file.txt", "this is a file"),
        (tmp_path / "pytorch_model.bin", "this is a pickle"),
        ("nobody-at-all/nothing-here", "the download failed: the hub cannot be reached"),
    ):
        answer = heed("import", name, "--run", tmp_path / "run")
        assert (answer.code, said in answer.err) == (2, True), answer.err
        assert not (tmp_path / "run").exists()


def test_a_model_without_a_head_makes_no_run(tmp_path: Path, heed: Heed) -> None:
    source = saved(make(CASES["bert"]), tmp_path / "in")
    answer = heed("import", source, "--run", tmp_path / "run")
    assert answer.code == 2
    assert "BertModel has no head" in answer.err
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_taken(tmp_path: Path, heed: Heed) -> None:
    source = saved(make(CASES["gpt2-writes"]), tmp_path / "in")
    assert heed("import", source, "--run", tmp_path / "run").code == 0
    held = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    answer = heed("import", source, "--run", tmp_path / "run")
    assert (answer.code, "there is a run here already" in answer.err) == (2, True)
    assert held == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    answer = heed("export", tmp_path / "run", source)
    assert (answer.code, "not an empty folder" in answer.err) == (2, True)


def test_a_run_that_no_class_holds(tmp_path: Path, heed: Heed) -> None:
    recipe = Recipe.of({"task": "generate", "model": {"width": 16, "position": "alibi"}})
    run = Run.create(tmp_path / "run", recipe)
    run.write_environment({})
    save_file(build("generate", recipe.model, vocab=9).state_dict(), run.weights_path)
    answer = heed("export", tmp_path / "run", tmp_path / "out")
    assert answer.code == 2
    assert (
        "run: no class of transformers can hold this model. model.position = 'alibi'" in answer.err
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_formats(tmp_path: Path, heed: Heed) -> None:
    source = saved(make(CASES["gpt2-writes"]), tmp_path / "in")
    assert heed("import", source, "--run", tmp_path / "run").code == 0
    answer = heed("export", tmp_path / "run", tmp_path / "out", "--to", "ctranslate")
    assert (answer.code, "Did you mean 'ctranslate2'?" in answer.err) == (2, True)
    answer = heed("export", tmp_path / "run", tmp_path / "out", "--quantize", "int8")
    assert (answer.code, "--quantize is not an option of --to hf" in answer.err) == (2, True)
    shutil.rmtree(tmp_path / "run")
    answer = heed("export", tmp_path / "run", tmp_path / "out")
    assert (answer.code, "there is no run here" in answer.err) == (2, True)
    assert all(find_spec(module) for module in FORMATS.values())
