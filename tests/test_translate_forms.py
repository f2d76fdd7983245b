"""Every form that a vLLM start is written in comes out in the same form, with everything around it untouched."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest
import yaml

from state.errors import UsageError
from tests.translate_helpers import COMMAND, WANTED, in_bash, server
from tools.serving.flags import translate


@pytest.mark.parametrize(
    "script",
    [
        COMMAND,
        f"nohup {COMMAND} 2>/dev/null",
        f"exec {COMMAND}",
        COMMAND.replace(" --", " \\\n  --"),
        COMMAND.replace(" --", " \\ \n  --"),
        COMMAND.replace(" --", "\n  --"),
        COMMAND.replace("vllm serve org/m", "python -m vllm.entrypoints.openai.api_server --model org/m"),
        COMMAND.replace("--max-model-len 4096", "--max_model_len=4096"),
        'ARGS=(-tp 2 --max-model-len 4096)\nvllm serve org/m "${ARGS[@]}" --hf-overrides \'{"a": "b c"}\'',
        "ARGS='-tp 2 --max-model-len 4096'\nvllm serve org/m $ARGS --hf-overrides '{\"a\": \"b c\"}'",
        f"LEN=${{LEN:-4096}}\nMODEL=org/m\n{COMMAND.replace('4096', '$LEN').replace('org/m', '$MODEL')}",
        f"if true; then\n  {COMMAND}\nfi\necho done >&2",
    ],
)
def test_bash_reads_the_translated_script_as_it_was_meant(script: str) -> None:
    """What bash makes of the output is what SGLang's parser was said to read."""
    found = translate(script)
    assert found.form == "shell"
    assert found.parsed == WANTED
    assert found.command is not None
    assert [server(words) for words in in_bash(found.command)] == [WANTED]


def test_a_shell_within_quotes_is_translated_within_quotes() -> None:
    """`bash -c`, ssh and heredocs hold scripts of their own."""
    for outer in (f"bash -c {shlex.quote(COMMAND)}", "bash <<'EOF'\n" + COMMAND + "\nEOF\n"):
        found = translate(outer)
        assert found.parsed == WANTED
        assert found.command is not None
        script = found.command.replace("bash", "bash_", 1)
        shown = subprocess.run(
            ["bash", "-c", 'bash_() { if [ "$1" = -c ]; then printf %s "$2"; else cat; fi; }\n' + script],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert [server(words) for words in in_bash(shown)] == [WANTED]


def test_docker_run_keeps_its_own_options_and_gets_the_whole_command() -> None:
    """The image has another entry point, vLLM's variables go, and what docker lacks is said."""
    found = translate(
        "docker run -d --gpus all -e VLLM_USE_V1=1 -e HF_HOME=/h -v /data -p 8000:8000 \\\n  vllm/vllm-openai:v0.9 "
        "--model org/m --download-dir /elsewhere"
    )
    assert found.form == "docker"
    words = shlex.split((found.command or "").replace("\\\n", " "))
    assert words[:9] == ["docker", "run", "-d", "--gpus", "all", "-e", "HF_HOME=/h", "-v", "/data"]
    image = next(number for number, word in enumerate(words) if word.startswith("lmsysorg/sglang:"))
    assert words[image + 1] == "python3"
    assert server(words[image + 2 :])["download_dir"] == "/elsewhere"
    told = " ".join(found.warnings)
    assert "anonymous volume" in told
    assert "/elsewhere" in told
    assert "--shm-size" in told


COMPOSE = """\
services:
  db: {image: "postgres:15"}  # stays
  vllm:
    image: vllm/vllm-openai:latest
    environment:
      - VLLM_ATTENTION_BACKEND=FLASHINFER
      - HF_HOME=/h
    command: %s
    ports: ["8000:8000"]
"""


@pytest.mark.parametrize(
    "command",
    [
        "--model org/m -tp 2 --max-model-len 4096",
        ">\n      --model org/m\n      -tp 2\n      --max-model-len 4096",
        '["--model", "org/m", "-tp", "2", "--max-model-len", "4096"]',
        "\n      - --model\n      - org/m\n      - -tp=2\n      - --max-model-len\n      - '4096'",
        "vllm serve org/m -tp 2 --max-model-len 4096",
        'bash -c "vllm serve org/m -tp 2 --max-model-len 4096"',
    ],
)
def test_compose_files_stay_compose_files(command: str) -> None:
    """A service of vLLM becomes one of SGLang in each of the ways to write a command; the others are untouched."""
    found = translate(COMPOSE % command)
    assert found.form == "compose"
    assert found.command is not None
    assert 'db: {image: "postgres:15"}  # stays' in found.command
    service = yaml.safe_load(found.command)["services"]["vllm"]
    told = service["command"]
    words = shlex.split(told) if isinstance(told, str) else told
    words = shlex.split(words[2]) if words[0] == "bash" else words
    assert words[0].startswith("python")
    assert server(words[1:]) == found.parsed
    kept = ("model_path", "host", "port", "tp_size", "context_length")
    assert found.parsed == {**{name: WANTED[name] for name in kept},
                            "attention_backend": "flashinfer"}  # fmt: skip
    assert service["environment"] == ["HF_HOME=/h"]
    assert service["image"].startswith("lmsysorg/sglang:")


MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: server   # the one
        image: vllm/vllm-openai:v0.9
%s
        env:
        - name: MODEL
          value: org/m
        - {name: VLLM_API_KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}
        resources: {limits: {nvidia.com/gpu: "2"}}
"""


@pytest.mark.parametrize(
    "lines",
    [
        '        args: ["--model=$(MODEL)", "-tp=2"]',
        "        args:\n        - --model\n        - $(MODEL)\n        - --tensor-parallel-size\n        - '2'",
        '        command: ["vllm", "serve", "$(MODEL)"]\n        args: ["-tp", "2"]',
        "        command: [python3, -m, vllm.entrypoints.openai.api_server]\n"
        '        args: [--model, $(MODEL), -tp, "2"]',
        '        command: ["/bin/sh", "-c"]\n        args:\n        - |\n          echo hello\n'
        "          vllm serve org/m \\\n            -tp 2",
        '        command: ["bash", "-c", "vllm serve org/m -tp 2"]',
        "        command: [sh, -c, 'date; python3 -m vllm.entrypoints.openai.api_server \"$@\"', '--']\n"
        '        args: ["--model=org/m", "-tp=2"]',
    ],
)
def test_manifests_stay_manifests(lines: str) -> None:
    """Containers are changed at their places; expansions of Kubernetes stay and are read."""
    found = translate(MANIFEST % lines)
    assert found.form == "k8s"
    assert found.command is not None
    assert found.parsed == {
        "model_path": "org/m", "host": "0.0.0.0", "port": 8000, "tp_size": 2, "api_key": "$(VLLM_API_KEY)",
    }  # fmt: skip
    assert "# the one" in found.command
    container = yaml.safe_load(found.command)["spec"]["template"]["spec"]["containers"][0]
    everything = " ".join([*container["command"], *container.get("args", [])])
    assert "sglang.launch_server" in everything
    assert "vllm" not in everything
    assert "--tp-size" in everything
    assert [one["name"] for one in container["env"]] == ["MODEL", "VLLM_API_KEY"]


def test_a_unit_stays_a_unit() -> None:
    """ExecStart and the variables of vLLM change, comments and everything else stay."""
    unit = (
        "[Unit]\nDescription=m\n[Service]\nEnvironment=VLLM_LOGGING_LEVEL=DEBUG HF_HOME=/h\n"
        '# Environment="VLLM_SLEEP_WHEN_IDLE=1"\nExecStart=/opt/vllm/bin/vllm serve org/m \\\n  # why not\n  -tp 2\n'
        "Restart=always\n"
    )
    found = translate(unit)
    assert found.form == "systemd"
    assert found.parsed == {"model_path": "org/m", "host": "0.0.0.0", "port": 8000, "tp_size": 2, "log_level": "debug"}
    text = found.command or ""
    assert 'Environment="HF_HOME=/h"\n' in text
    assert "ExecStart=/opt/sglang/bin/python -m sglang.launch_server \\\n" in text
    assert text.startswith("[Unit]\nDescription=m\n[Service]\n")
    assert text.endswith("Restart=always\n")
    assert '# Environment="VLLM_SLEEP_WHEN_IDLE=1"' in text
    assert "-tp 2" not in text


def test_a_chart_is_read_and_a_broken_manifest_is_not_half_done() -> None:
    """Lines of template control do not hide a container; YAML that is none is an error with its line."""
    chart = (
        "apiVersion: v1\nspec:\n  containers:\n  {{- if .Values.x }}\n  - image: vllm/vllm-openai:{{ .Values.tag }}\n"
        "    args:\n    - --model={{ .Values.model }}\n    {{- end }}\n"
    )
    found = translate(chart)
    assert found.parsed is not None
    assert found.parsed["model_path"] == "{{ .Values.model }}"
    assert "{{- if .Values.x }}\n" in (found.command or "")
    with pytest.raises(UsageError, match="line 4"):
        translate('spec:\n  containers:\n  - image: vllm/vllm-openai\n   command: ["vllm", "serve", "m"]\n')


def test_a_manifest_in_json_stays_json() -> None:
    """What `kubectl get -o json` prints can be given back to `kubectl apply`."""
    server_container = {"image": "vllm/vllm-openai", "args": ["--model=m"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [server_container]}}
    container = json.loads(translate(json.dumps(pod, indent=2)).command or "")["spec"]["containers"][0]
    assert container["command"] == ["python3", "-m", "sglang.launch_server"]
    assert container["args"][:2] == ["--model-path", "m"]
    assert container["image"].startswith("lmsysorg/sglang:")


def test_a_dockerfile_keeps_its_lists() -> None:
    """A command in exec form stays one, on SGLang's image and without vLLM's variables."""
    text = (
        'FROM vllm/vllm-openai:v0.9\nENV HF_HOME=/h\nENV VLLM_USE_V1=1\nENTRYPOINT ["vllm", "serve", "m", "-tp", "2"]\n'
    )
    told = (translate(text).command or "").splitlines()
    assert told[0].startswith("FROM lmsysorg/sglang:")
    assert told[1] == "ENV HF_HOME=/h"
    assert server(json.loads(told[2].removeprefix("ENTRYPOINT "))[1:])["tp_size"] == 2


def test_anchors_and_merges_of_a_compose_file_hold() -> None:
    """A service that gets its image from an anchor is a service of vLLM too."""
    text = (
        "x-base: &base\n  image: vllm/vllm-openai\n  command: &args [--model, m]\nservices:\n  a:\n    <<: *base\n"
        "  b:\n    <<: *base\n    command: [--model, n]\n  c:\n    image: other\n    command: *args\n"
    )
    services = yaml.safe_load(translate(text).command or "")["services"]
    assert server(services["a"]["command"][1:])["model_path"] == "m"
    assert server(services["b"]["command"][1:])["model_path"] == "n"
    assert services["c"]["image"] == "other"


def test_a_unit_of_podman_stays_one() -> None:
    """A quadlet's image has no server as its entry point, so the whole command is written."""
    unit = (
        "[Container]\nImage=docker.io/vllm/vllm-openai:latest\nEnvironment=VLLM_USE_V1=1\nExec=--model m -tp 2\nX=y\n"
    )
    text = translate(unit).command or ""
    assert "Exec=python3 -m sglang.launch_server --model-path m --host 0.0.0.0 --port 8000 --tp-size 2\nX=y\n" in text
    assert "VLLM" not in text


def test_a_configuration_file_wins_less_than_the_command_line() -> None:
    """`--config` is read from what is beside it, and stays a file where a file was given."""
    config = "tensor-parallel-size: 4\nmax_model_len: 8192\nno-enable-prefix-caching: true\nhf-overrides: {a: 1}\n"
    found = translate("vllm serve org/m --config c.yaml -tp 2", files={"c.yaml": config})
    assert found.parsed is not None
    assert found.parsed["tp_size"] == 2
    assert found.parsed["context_length"] == 8192
    assert found.parsed["disable_radix_cache"] is True
    assert any("overridden" in line for line in found.warnings)
    written = f"cat > c.yaml <<EOF\n{config}EOF\nvllm serve org/m --config c.yaml -tp 2\n"
    assert translate(written).parsed == found.parsed
    alone = translate("model: org/m\n" + config)
    assert alone.form == "config"
    assert yaml.safe_load(alone.command or "")["model-path"] == "org/m"
    absent = translate("vllm serve org/m --config c.yaml")
    assert "not there" in " ".join(absent.warnings)
