"""Signs of a model that does not load: trust, architecture, hub, files, tokenizer, the drafter's shapes.

Sources: messages in vLLM 0.2.7, 0.6.3, 0.10.0, 0.23.0 and SGLang 0.2.15 to 0.5.14; transformers, huggingface_hub,
safetensors, torch.
"""

from __future__ import annotations

import re

from tools.serving.log_signs import Facts, cause, clue

_DRAFT_TENSORS = re.compile(r"lm_head|embed_tokens|midlayer|\bfc\.|d2t|t2d|draft|eagle", re.IGNORECASE)


def _size_mismatch_remedy(found: re.Match[str], facts: Facts) -> str:
    name, file, model = found["tensor"], found["file"], found["model"]
    rows = (file.split(",")[0].strip(), model.split(",")[0].strip())
    if "lm_head" in name and rows[0] != rows[1]:
        return (
            f"`{name}` has {rows[0]} rows in the file and {rows[1]} in the model: a draft vocabulary of {rows[0]} "
            "loaded "
            f"as the target's {rows[1]}. The drafter's config lacks `draft_vocab_size` or the class ignores it: add "
            "it, "
            "with `d2t` in the weights, and load it as an EAGLE-3 drafter"
        )
    return f"`{name}` is [{file}] in the file and [{model}] in the model: the config is not that of these weights"


def _bare_mismatch(found: re.Match[str], facts: Facts) -> str:
    return (
        "the engine does not say which tensor: read the shapes in the headers of the target's and the drafter's "
        "safetensors files and compare them with the drafter's config (`draft_vocab_size`, hidden size, heads)"
    )


def _is_draft(found: re.Match[str], facts: Facts) -> str | None:
    about = found.groupdict().get("tensor") or facts.values.get("draft", "")
    return None if _DRAFT_TENSORS.search(about) else "perhaps not the drafter"


TRUST = "trust_remote_code missing"
ARCHITECTURE = "unsupported architecture"
NOT_FOUND = "model not found"
GATED = "no access to the model repository"

MODEL = (
    cause(
        TRUST,
        ("custom code", "trust_remote_code=True", "execute the configuration file"),
        r"contains custom code|wish to run the custom code|execute the configuration file|"
        r"Please pass the argument `trust_remote_code=True`|set the option `trust_remote_code=True`",
        "the repository's own Python code would run: read it, and only when the operator agrees add "
        "--trust-remote-code. "
        "Keep stdin closed, else the question waits for ever",
    ),
    cause(
        ARCHITECTURE,
        (
            "are not supported for now",
            "failed to be inspected",
            "Unsupported architectures",
            "has no SGlang implementation",
            "not recognize this architecture",
            "is not supported anymore",
            "not a registered model in the Transformers",
        ),
        r"[Aa]rchitectures? \[?'?(?P<arch>\w*)|model type `(?P<type>[^`]*)`|'?(?P<other>\w+)'? (?:has no|is not a "
        r"registered)",
        lambda found, facts: (
            f"this version does not know `{found['arch'] or found['type'] or found['other'] or 'the model'}`: look "
            "for the "
            "version that added it; a new model type also wants a newer transformers"
        ),
        detail=lambda found, facts: "transformers too old" if found["type"] else None,
    ),
    cause(
        GATED,
        ("gated repo", "GatedRepoError", "is restricted", "Invalid user token", "403 Client Error"),
        r"access (?:to )?(?:a )?gated repo|GatedRepoError|Access to model .* is restricted|Invalid user token|403 "
        r"Client Error",
        "accept the model's licence on its page, then give the server a token (HF_TOKEN), or copy the model to the "
        "host",
    ),
    cause(
        NOT_FOUND,
        (
            "RepositoryNotFoundError",
            "valid model identifier",
            "Repo id must be",
            "HFValidationError",
            "EntryNotFoundError",
            "a file named config.json",
            "Invalid repository ID",
            "No such file or directory: '",
            "Incorrect path_or_model_id",
        ),
        r"RepositoryNotFoundError|is not a local folder|Repo id must be|HFValidationError|(?<!Local)EntryNotFoundError|"
        r"file named config\.json|Invalid repository ID|Incorrect path_or_model_id|"
        r"No such file or directory: '[^']*(?:config\.json|tokenizer|model|safetensors)[^']*'",
        "check the path or the repository's name, letter by letter; a path inside a container must be mounted there; "
        "for "
        "a private repository set HF_TOKEN",
    ),
    clue(GATED, "401 Client Error", None, "the hub refuses: set HF_TOKEN, and check the repository's name"),
    cause(
        "hub unreachable",
        (
            "couldn't connect to '",
            "LocalEntryNotFoundError",
            "OfflineModeIsEnabled",
            "outgoing traffic has been disabled",
        ),
        None,
        "the host does not reach the model hub and the files are not all in its cache: copy the model there and give "
        "its "
        "path, or set HF_ENDPOINT or a proxy; HF_HUB_OFFLINE=1 only helps when everything is cached",
    ),
    clue(
        "hub unreachable",
        (
            "Max retries exceeded with url",
            "Name or service not known",
            "Temporary failure in name resolution",
            "Network is unreachable",
        ),
        None,
        "the host does not reach the model hub: copy the model there and give its path, or set a proxy",
    ),
    cause(
        "corrupt weights",
        (
            "SafetensorError",
            "deserializing header",
            "PytorchStreamReader failed",
            "invalid load key",
            "corrupted safetensors",
            "MetadataIncompleteBuffer",
            "HeaderTooLarge",
        ),
        None,
        "a weight file is cut or is not what its name says (an LFS pointer, a web page): compare sizes with the hub "
        "and "
        "download it again",
    ),
    cause(
        "weights missing",
        (
            "Cannot find any model weights",
            "No model weights found",
            "is incomplete",
            "are missing from disk",
            "were not initialized from checkpoint",
            "Some safetensors shards are missing",
        ),
        r"Cannot find any model weights|No model weights found|Checkpoint at .* is incomplete|missing from disk|"
        r"not initialized from checkpoint|shards are missing",
        "the download is not complete, or the weights are of another format: compare the folder with the index file, "
        "and "
        "download what is missing",
    ),
    cause(
        "tokenizer missing",
        (
            "load tokenizer for",
            "instantiate the backend tokenizer",
            "Tokenizer class",
            "untagged enum",
            "SentencePieceExtractor",
            "TokenizersBackend",
        ),
        r"Can't load tokenizer|backend tokenizer|Tokenizer class \S+ (?:does not exist|is not)|untagged enum|"
        r"SentencePieceExtractor|TokenizersBackend does not",
        "the tokenizer's files are missing or newer than the installed library: complete the folder, name another with "
        "--tokenizer (SGLang --tokenizer-path), or update transformers and tokenizers",
    ),
    cause(
        "chat template missing",
        ("chat template", "chat_template"),
        r"(?:chat template|chat_template)\S* (?:is not set|is no longer allowed|file path|.*(?:not found|failed to "
        r"be opened|"
        r"is not a built-in))|no chat template",
        "the model brings no chat template: give one with --chat-template FILE; /v1/completions works without",
        survivable=True,
    ),
    cause(
        "draft-model shape mismatch",
        "size mismatch for",
        r"size mismatch for (?P<tensor>[\w.]+): copying a param with shape torch\.Size\(\[(?P<file>[\d, ]*)\]\) from "
        r"checkpoint, the shape in current model is torch\.Size\(\[(?P<model>[\d, ]*)\]\)",
        _size_mismatch_remedy,
        detail=_is_draft,
    ),
    cause(
        "draft-model shape mismatch",
        ("loaded_weight.shape", "Attempted to load weight (", "shapes cannot be multiplied", "== input_embeds.shape"),
        r"assert .*shape == loaded_weight\.shape|hidden_states\.shape\[-1\] == input_embeds|Attempted to load weight "
        r"\(|mat1 and mat2 shapes cannot be multiplied",
        _bare_mismatch,
        detail=_is_draft,
    ),
    cause(
        "weights do not fit the model",
        ("KeyError: '", "weights that do not exist", "no module or parameter named"),
        r"KeyError: '(?P<tensor>[\w.]*(?:weight|bias|scales?|qweight|qzeros|g_idx|d2t|t2d))'|no module or parameter "
        r"named "
        r"'(?P<other>[\w.]+)'|weights that do not exist",
        lambda found, facts: (
            f"the file holds `{found['tensor'] or found['other'] or 'a tensor'}` and the engine's class has no such "
            "place: "
            "a drafter or checkpoint of another tool or version, or quantised otherwise than its config says. "
            "Compare the "
            "tensor names with what the class loads"
        ),
    ),
)
