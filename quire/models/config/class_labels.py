"""The classes of a checkpoint with a head for them, as ``config.json`` names them."""

from __future__ import annotations

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.pooling_config import ClassifierConfig

#: What sentence-transformers' cross-encoders do to a logit.
SCORE_ACTIVATIONS = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
}
PROBLEM_ACTIVATIONS = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "identity",
}


def read_classifier(config: ConfigFields, *, state: str, bias: bool) -> ClassifierConfig:
    """Read what a head of classes gives.

    One class is a score, for which sentence-transformers' field names the activation; several are
    alternatives unless ``problem_type`` says otherwise.

    Raises:
        ModelLoadError: The classes are not numbered from 0, or an activation is not implemented.
    """
    labels = _labels(config)
    activation = "sigmoid" if len(labels) == 1 else "softmax"
    if config.has("problem_type"):
        problem = config.text("problem_type")
        if problem not in PROBLEM_ACTIVATIONS:
            rule = f"must be one of {', '.join(PROBLEM_ACTIVATIONS)}"
            raise config.error("problem_type", rule)
        # One class with softmax would always be certain.
        if len(labels) > 1 or problem == "regression":
            activation = PROBLEM_ACTIVATIONS[problem]
    of_library = config.object("sentence_transformers")
    older = "sbert_ce_default_activation_function"
    for fields, name in ((of_library, "activation_fn"), (config, older)):
        if fields is not None and fields.has(name):
            if fields.text(name) not in SCORE_ACTIVATIONS:
                raise fields.error(name, f"must be one of {', '.join(SCORE_ACTIVATIONS)}")
            activation = SCORE_ACTIVATIONS[fields.text(name)]
            break
    return ClassifierConfig(labels=labels, state=state, bias=bias, activation=activation)


def _labels(config: ConfigFields) -> tuple[str, ...]:
    names = config.object("id2label")
    if names is None:
        count = config.integer("num_labels", 2)
        return tuple(f"LABEL_{number}" for number in range(count))
    numbers = [str(number) for number in range(len(names.values))]
    if set(names.values) != set(numbers):
        raise config.error("id2label", f"must name the classes 0 to {len(numbers) - 1}")
    return tuple(names.text(number) for number in numbers)
