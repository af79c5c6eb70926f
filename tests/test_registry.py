"""Names, overlays, repositories and paths: what runner.registry makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import BadModelFile, ConfigError, UnknownModel, UnsupportedModel, UsageError
from runner.model_files import choose
from runner.paths import builtin, user_paths
from runner.prepare import locate
from runner.registry import ModelSpec, Registry, check_repo, quant_of


@pytest.fixture
def registry() -> Registry:
    return Registry.load_for()


def overlay(text: str) -> Registry:
    path = user_paths().user_models_file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return Registry.load_for()


# --- the built-in file ---


def test_the_builtin_file_has_the_demo_and_many_real_models(registry: Registry) -> None:
    assert len(registry.specs) >= 40
    assert registry.specs[0].name == "demo"
    assert registry.resolve("demo").path == builtin("models/demo").absolute()


def test_every_builtin_model_is_described_completely(registry: Registry) -> None:
    for spec in registry.specs:
        assert all((spec.family, spec.description, spec.architecture, spec.licence)), spec.name
        assert spec.parameters > 10**7, spec.name
        assert spec.context >= 2048, spec.name
        if spec.name != "demo":
            assert spec.repo, spec.name
            assert spec.gguf, spec.name
            assert spec.quant in spec.quants, spec.name
            assert spec.file.endswith("{quant}.gguf"), spec.name
            for quant in spec.quants:
                assert quant_of(spec.file.replace("{quant}", quant)) == quant, spec.name


def test_drafts_are_models_of_the_registry_and_smaller(registry: Registry) -> None:
    drafted = [spec for spec in registry.specs if spec.draft]
    assert drafted
    for spec in drafted:
        assert registry.resolve(spec.draft).parameters < spec.parameters, spec.name


def test_no_name_or_alias_or_repository_means_two_models(registry: Registry) -> None:
    names = [name for spec in registry.specs for name in (spec.name, *spec.aliases)]
    assert len(set(names)) == len(names)
    repos = [spec.gguf.lower() for spec in registry.specs if spec.gguf]
    assert len(set(repos)) == len(repos)


# --- names ---


def test_a_name_alone_takes_the_default_quantization(registry: Registry) -> None:
    spec = registry.resolve("qwen3-8b")
    assert (spec.chosen_quant, spec.wants_safetensors) == ("Q4_K_M", False)


def test_a_quantization_is_taken_in_any_case(registry: Registry) -> None:
    assert registry.resolve("qwen3-8b:q8_0").chosen_quant == "Q8_0"


def test_the_original_weights_can_be_asked_for(registry: Registry) -> None:
    spec = registry.resolve("qwen3-8b:safetensors")
    assert (spec.wants_safetensors, spec.chosen_quant, spec.repo) == (True, "", "Qwen/Qwen3-8B")


def test_an_unknown_quantization_lists_those_that_exist(registry: Registry) -> None:
    with pytest.raises(UsageError) as caught:
        registry.resolve("qwen3-8b:Q9_X")
    assert "Q4_K_M, Q5_0, Q5_K_M, Q6_K, Q8_0, safetensors" in caught.value.hint


def test_the_demo_has_no_quantizations_to_choose(registry: Registry) -> None:
    with pytest.raises(UsageError, match="demo has no quantization 'Q2_K'"):
        registry.resolve("demo:Q2_K")


@pytest.mark.parametrize("typed", ["qwen3-8", "Qwen3_8B", "qwen-3-8b", "qwen3-8b-"])
def test_an_unknown_name_hints_at_the_nearest(registry: Registry, typed: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        registry.resolve(typed)
    assert "qwen3-8b" in caught.value.hint


def test_a_part_of_names_hints_at_names_that_contain_it(registry: Registry) -> None:
    with pytest.raises(UnknownModel) as caught:
        registry.resolve("oss")
    assert "gpt-oss-20b" in caught.value.hint


@pytest.mark.parametrize("typed", ["zzzzzzzz", "nodel"])
def test_a_name_like_no_other_hints_at_the_list(registry: Registry, typed: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        registry.resolve(typed)
    assert "Did you mean" not in caught.value.hint
    assert "runner ls --all" in caught.value.hint


def test_an_alias_and_upper_case_mean_the_model(registry: Registry) -> None:
    assert registry.resolve("llama3.1").name == "llama-3.1-8b"
    assert registry.resolve("Qwen3-8B").name == "qwen3-8b"


@pytest.mark.parametrize("text", ["", "  ", "a\x00b"])
def test_an_empty_name_and_nul_are_refused(registry: Registry, text: str) -> None:
    with pytest.raises(UsageError):
        registry.resolve(text)


def test_fake_is_the_scripted_backend(registry: Registry) -> None:
    assert registry.resolve("fake").origin == "fake"


# --- repositories ---


def test_a_repository_with_and_without_a_quantization(registry: Registry) -> None:
    plain, chosen = registry.resolve("someone/some-GGUF"), registry.resolve("someone/some-GGUF:q4_k_m")
    assert (plain.origin, plain.gguf, plain.chosen_quant) == ("hub", "someone/some-GGUF", "")
    assert (chosen.gguf, chosen.asked, chosen.name) == ("someone/some-GGUF", "Q4_K_M", "someone/some-GGUF:q4_k_m")


def test_a_known_repository_brings_what_is_known_of_the_model(registry: Registry) -> None:
    gguf, original = registry.resolve("Qwen/Qwen3-8B-GGUF:Q2_K"), registry.resolve("Qwen/Qwen3-8B")
    assert (gguf.family, gguf.context, gguf.chosen_quant) == ("Qwen3", 40960, "Q2_K")
    assert (original.wants_safetensors, original.repo) == (True, "Qwen/Qwen3-8B")
    plain = registry.resolve("qwen/Qwen3-8B-GGUF")  # its list of files says what there is, not models.toml
    assert (plain.source, plain.repos) == (("qwen/Qwen3-8B-GGUF", "main"), ("qwen/Qwen3-8B-GGUF",))
    assert (plain.chosen_quant, plain.file, plain.quants, plain.sizes) == ("", "", (), {})
    assert registry.resolve("Qwen/Qwen3-8B:safetensors").wants_safetensors


def test_a_quantization_that_is_asked_of_the_original_weights_is_not_forgotten(registry: Registry) -> None:
    spec = registry.resolve("Qwen/Qwen3-8B:Q4_K_M")
    assert (spec.chosen_quant, spec.source) == ("Q4_K_M", ("Qwen/Qwen3-8B", "main"))
    with pytest.raises(UsageError, match="has no Q4_K_M: it has the original weights"):
        choose(spec, ["config.json", "tokenizer.json", "model.safetensors"], "Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    "text",
    [
        "a/../b", "../b/c/d", "a/b/c", "a//b", "/a/b", "a/", "a/.b", "a/b..c", "a/b--c", "a/b.git", "a b/c", "a/b\nc",
        "a/b\\c", "C:/a", "c:\\a", "a/b:Q4/../..", "a/b:", "a/b:Q4 K", "x" * 200 + "/y", "a/é",
    ],
)  # fmt: skip
def test_names_that_no_repository_can_have_are_refused(registry: Registry, text: str) -> None:
    with pytest.raises(UsageError):
        registry.resolve(text)


@pytest.mark.parametrize("repo", ["Qwen/Qwen3-8B-GGUF", "a/b", "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF", "01-ai/Yi_1"])
def test_ordinary_repository_names_are_accepted(repo: str) -> None:
    assert check_repo(repo) == repo


# --- paths ---


def test_paths_that_exist_are_models(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "x.gguf").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in (str(tmp_path / "own"), "./own", "own/model", "~/own", "x.gguf"):
        spec = registry.resolve(text)
        assert spec.origin == "path", text
        assert spec.path is not None
        assert spec.path.is_absolute()
        assert spec.path.exists()


def test_a_registry_name_wins_over_a_directory_of_that_name(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert registry.resolve("demo").origin == "registry"
    assert registry.resolve("./demo").path == tmp_path / "demo"


@pytest.mark.parametrize("text", ["/no/such", "./nothing", "nothing.gguf", "C:\\models\\x", "~/none", "x\\y"])
def test_what_looks_like_a_path_and_is_not_there_is_said_so(registry: Registry, text: str) -> None:
    with pytest.raises(UsageError, match="no file or directory") as caught:
        registry.resolve(text)
    assert "owner/repo" in caught.value.hint


def test_a_path_of_another_user_or_far_too_long_is_a_usage_error(registry: Registry) -> None:
    for text in ("~no-such-user-here/x", "/" + "x" * 5000):
        with pytest.raises(UsageError):
            registry.resolve(text)


# --- models made here ---


def test_models_made_here_are_found_by_name_before_the_registry(registry: Registry) -> None:
    models = user_paths().models
    for name in ("mine", "qwen3-8b", "half.partial", ".hidden", "Mine:2"):
        (models / name).mkdir(parents=True)
    assert [spec.name for spec in registry.made()] == ["Mine:2", "mine", "qwen3-8b"]
    assert registry.resolve("Mine:2").path == models / "Mine:2"
    assert registry.resolve("mine").path == models / "mine"
    assert registry.resolve("qwen3-8b").origin == "made"
    for name in ("half", "half.partial"):
        with pytest.raises(UnknownModel, match="half is not finished") as caught:
            registry.resolve(name)
        assert "given again" in caught.value.hint
        assert "`runner rm half.partial` deletes it" in caught.value.hint
        with pytest.raises(BadModelFile, match=r"half\.partial is not finished"):
            locate(registry.resolve(str(models / "half.partial")))
    of_others = models.parent / "half.partial"  # such as a download of another program
    of_others.mkdir()
    with pytest.raises(UnsupportedModel, match="has no GGUF and no safetensors"):
        locate(registry.resolve(str(of_others)))


# --- the user's file ---


def test_the_users_file_changes_single_keys_and_adds_models() -> None:
    registry = overlay('[qwen3-8b]\nquant = "Q8_0"\n["my-model"]\ngguf = "me/mine-GGUF"\nfile = "m-{quant}.gguf"\n')
    changed, added = registry.resolve("qwen3-8b"), registry.resolve("my-model")
    assert (changed.chosen_quant, changed.gguf, changed.context) == ("Q8_0", "Qwen/Qwen3-8B-GGUF", 40960)
    assert (added.gguf, added.revision) == ("me/mine-GGUF", "main")
    assert len(registry.specs) == len(Registry.load(builtin("models.toml")).specs) + 1


def test_a_path_in_the_users_file_is_relative_to_that_file(runner_home: Path) -> None:
    registry = overlay('[mine]\npath = "weights/x.gguf"\n[demo]\ndescription = "changed"\n')
    assert registry.resolve("mine").path == runner_home / "config" / "weights" / "x.gguf"
    assert registry.resolve("demo").path == builtin("models/demo").absolute()


def test_a_builtin_model_can_be_moved_to_a_repository() -> None:
    spec = overlay('[demo]\ngguf = "me/demo-GGUF"\n').resolve("demo")
    assert (spec.path, spec.gguf) == (None, "me/demo-GGUF")


def test_a_model_can_be_moved_to_files_of_one_s_own_which_are_no_repository_s() -> None:
    registry = overlay('[qwen3-8b]\npath = "/weights/x.gguf"\n')
    spec = registry.resolve("qwen3-8b")
    assert (spec.path, spec.repos, spec.context) == (Path("/weights/x.gguf"), (), 40960)
    assert registry.known_repo("Qwen/Qwen3-8B-GGUF") is None
    with pytest.raises(UsageError, match="no quantization"):
        registry.resolve("qwen3-8b:Q8_0")


def test_an_alias_of_one_s_own_may_have_capitals() -> None:
    registry = overlay('[mine]\nrepo = "a/b"\naliases = ["MyOwn"]\n')
    assert {registry.resolve(text).name for text in ("MyOwn", "myown")} == {"mine"}


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ('[x]\nrepo = "a/b"\ncontxt = 5', "unknown key 'contxt'", "Did you mean context"),
        ('[x]\nrepo = "a/b"\ncontext = "5"', "context is '5'", "whole number"),
        ('[x]\nrepo = "a/b"\ncontext = true', "context is True", "whole number"),
        ('[x]\nrepo = "a/b"\ncontext = -1', "context is -1", "whole number"),
        ('[x]\nrepo = "a/b"\ngated = 1', "gated is 1", "true or false"),
        ('[x]\nrepo = "a/b"\nquants = "Q4"', "quants is 'Q4'", "list of strings"),
        ('[x]\nrepo = "a/b"\nquants = ["Q4", 5]', "quants is ['Q4', 5]", "list of strings"),
        ('[x]\nrepo = "a/b"\naliases = ["y", ""]', "aliases is ['y', '']", "list of strings"),
        ('[x]\nrepo = "a/b"\nsizes = { Q4 = "big" }', "sizes", "table of bytes"),
        ('[x]\nrepo = "a/b"\nsizes = { Q4 = 5, Q8 = -1 }', "sizes", "table of bytes"),
        ('[x]\nrepo = "a/../b"', "repo", "owner/repo"),
        ('[x]\ngguf = "a/b"\nquants = ["Q4"]\nfile = "x.gguf"', "{quant}", "quant"),
        ('[x]\ngguf = "a/b"\nquants = ["Q4"]\nfile = "{quant}"\nquant = "Q5"', "not one of its quants", "Q4"),
        ('[x]\npath = "~no-such-user-here/x"', "path is '~no-such-user-here/x'", "directory"),
        ('[x]\npath = "a\\u0000b"', "path is 'a\\x00b'", "directory"),
        ('[x]\npath = ""', "path is ''", "directory"),
        ("[x]\ncontext = 5", "nowhere", "repo, gguf or path"),
        ('["Bad Name"]\nrepo = "a/b"', "cannot be the name", "lower-case"),
        ("x = 5", "not a table", '["x"]'),
        ("[x\n", "cannot be read", "Mend"),
    ],
)
def test_mistakes_in_the_users_file_name_the_file_and_the_remedy(text: str, said: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        overlay(text)
    assert said in caught.value.message
    assert str(user_paths().user_models_file) in caught.value.message
    assert hint in caught.value.hint


# --- quantizations in names ---


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"), ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"), ("m.Q5_K_S.gguf", "Q5_K_S"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"), ("gpt-oss-120b-mxfp4-00001-of-00003.gguf", "MXFP4"),
        ("x-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"), ("x-IQ2_XXS.gguf", "IQ2_XXS"), ("BF16/x-BF16-00001-of-00002.gguf", "BF16"),
        ("x-F16.gguf", "F16"), ("x-TQ1_0.gguf", "TQ1_0"), ("model.gguf", ""), ("Q4_K_M.safetensors", ""),
        ("Qwen3-8B.gguf", ""),
    ],
)  # fmt: skip
def test_quantizations_are_read_from_file_names(name: str, quant: str) -> None:
    assert quant_of(name) == quant


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        ModelSpec(name="x").name = "y"  # type: ignore[misc]


def test_a_directory_that_has_the_unknown_name_is_hinted_at(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModel) as caught:
        registry.resolve("my-model")
    assert "./my-model" in caught.value.hint


def test_a_user_file_that_the_system_refuses_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    user_file = user_paths().user_models_file
    user_file.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"models\.toml cannot be read: Is a directory\."):
        Registry.load_for()
    user_file.rmdir()
    user_file.symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"cannot be read: No such file or directory\."):
        Registry.load_for()
    with monkeypatch.context() as patched:
        read = Path.read_text
        patched.setattr(Path, "is_file", lambda path: refuse(path) if path == user_file else True)
        patched.setattr(Path, "read_text", lambda path, **how: refuse(path) if path == user_file else read(path, **how))
        with pytest.raises(ConfigError, match="Permission denied"):
            Registry.load_for()
