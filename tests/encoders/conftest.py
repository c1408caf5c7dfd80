"""Tiny random encoders and decoders with heads, written by transformers, with real tokenizers."""

from __future__ import annotations

import json

import pytest
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.lazy_packages import lazy_package

torch = pytest.importorskip("torch")
transformers = lazy_package("transformers")

TEXTS = [
    "a cat sat on the mat",
    "the dog's bone isn't here, is it?",
    "prices fell sharply today",
    "the cat",
    "a cat and a dog sat on the mat and the prices fell, and fell, and fell again today",
]
#: Heads of 15 elements, none of the sizes a power of two.
BERT = {
    "vocab_size": 101,
    "hidden_size": 60,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 97,
    "max_position_embeddings": 172,
}
ROBERTA = {**BERT, "type_vocab_size": 1, "pad_token_id": 1}
DECODER = {
    "vocab_size": 101,
    "hidden_size": 60,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 97,
    "head_dim": 20,
    "max_position_embeddings": 172,
    "pad_token_id": 0,
}
NAMES = {"id2label": {0: "bad", 1: "fine", 2: "good"}, "label2id": {"bad": 0, "fine": 1, "good": 2}}
#: Name to class and settings of transformers.
MODELS = {
    "bert": ("BertModel", BERT),
    "bert-gelu-tanh": ("BertModel", {**BERT, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5}),
    "bert-score": ("BertForSequenceClassification", {**BERT, "num_labels": 1}),
    "bert-classes": ("BertForSequenceClassification", {**BERT, **NAMES}),
    "roberta": ("RobertaModel", ROBERTA),
    "roberta-classes": ("RobertaForSequenceClassification", {**ROBERTA, **NAMES}),
    "xlm-roberta": ("XLMRobertaModel", {**ROBERTA, "pad_token_id": 0}),
    "xlm-roberta-score": ("XLMRobertaForSequenceClassification", {**ROBERTA, "num_labels": 1}),
    "llama-classes": ("LlamaForSequenceClassification", {**DECODER, **NAMES}),
    "mistral-score": ("MistralForSequenceClassification", {**DECODER, "num_labels": 1}),
    "qwen2-classes": ("Qwen2ForSequenceClassification", {**DECODER, **NAMES}),
    "qwen3-score": ("Qwen3ForSequenceClassification", {**DECODER, "num_labels": 1}),
}


def make_tokenizer(folder, name):
    """Train a small tokenizer of the model's kind; return transformers' view of it."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if name.startswith("bert"):
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=101, special_tokens=special)
        pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=101, special_tokens=special, unk_token="[UNK]")
        pair = "[CLS] $A [SEP] [SEP] $B [SEP]"
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokens = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, sep_token="[SEP]", mask_token="[MASK]", **tokens
    )
    made.save_pretrained(folder)
    return made


class Oracle:
    """A model of transformers, its tokenizer and their folder."""

    def __init__(self, name, folder):
        kind, settings = MODELS[name]
        self.name, self.folder = name, folder
        self.tokenizer = make_tokenizer(folder, name)
        transformers.set_seed(0)
        model = getattr(transformers, kind)
        self.model = model(model.config_class(**settings)).eval().float()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter_name, parameter in self.model.named_parameters():
                parameter.normal_(0, 0.15, generator=generator)
                if "orm.weight" in parameter_name:
                    parameter.add_(1.0)
        self.model.save_pretrained(folder)

    def run(self, *texts):
        """Return transformers' output for a text, or for two read together."""
        types = self.name.startswith("bert")
        given = self.tokenizer(*texts, return_tensors="pt", return_token_type_ids=types)
        with torch.no_grad():
            return self.model(**given)

    def vector(self, text, kind):
        """Return a pooled vector of length 1."""
        found = self.run(text)
        states = found.last_hidden_state[0].double()
        vector = {
            "cls": lambda: states[0],
            "mean": lambda: states.mean(0),
            "last": lambda: states[-1],
            "pooler": lambda: found.pooler_output[0].double(),
        }[kind]()
        return (vector / vector.norm()).numpy()

    def probabilities(self, *texts):
        """Return those of the classes."""
        logits = self.run(*texts).logits[0].double()
        return (logits.sigmoid() if len(logits) == 1 else logits.softmax(0)).tolist()

    def settings(self, **changes):
        """Change the configuration on disk."""
        path = self.folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture(scope="session")
def create_encoder(tmp_path_factory):
    """Return a function that makes an oracle of MODELS, anew each time."""
    torch.set_num_threads(1)
    return lambda name: Oracle(name, tmp_path_factory.mktemp(name))


@pytest.fixture(scope="session")
def encoder(create_encoder):
    """Return a function that gives an oracle of MODELS, made once."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = create_encoder(name)
        return made[name]

    return get
