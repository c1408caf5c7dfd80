"""The prompt and the score of Qwen3-Reranker against the formula of its card in transformers."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.encoders.conftest import DECODER, TEXTS, torch, transformers
from tests.encoders.test_encoder_server import QUERY, served

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    """A random Qwen3 with a byte-level tokenizer, and its folder."""
    folder = tmp_path_factory.mktemp("qwen3-reranker")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([PREFIX, INSTRUCTION, "yes", "no", *TEXTS] * 4, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken(text) for text in ("<think>", "</think>")])
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    made.save_pretrained(folder)
    settings = {**DECODER, "vocab_size": len(made), "max_position_embeddings": 700}
    transformers.set_seed(0)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**settings)).eval().float()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.15, generator=generator)
            if "norm" in name:
                parameter.add_(1.0)
    model.save_pretrained(folder)
    return model, made, folder


def card_score(model, tokenizer, query, document, instruction):
    """Return what the card's code gives for a pair."""
    pair = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    ids = [
        token_id
        for text in (PREFIX, pair, SUFFIX)
        for token_id in tokenizer.encode(text, add_special_tokens=False)
    ]
    no, yes = map(tokenizer.convert_tokens_to_ids, ("no", "yes"))
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1]
    return torch.log_softmax(torch.stack([logits[no], logits[yes]]).double(), 0)[1].exp().item()


@pytest.mark.parametrize("instruction", [None, "Find a rhyme"])
def test_scores_are_those_of_the_card(reranker, instruction):
    model, tokenizer, folder = reranker
    options = {"classifier_from_token": ("no", "yes"), "score_template": "qwen3-reranker"}
    with served(folder, **options) as live:
        body = {"query": QUERY, "documents": TEXTS, "instruction": instruction}
        answer = live.http.post("/rerank", json=body).json()
        found = {one["index"]: one["relevance_score"] for one in answer["results"]}
        for index, text in enumerate(TEXTS):
            expected = card_score(model, tokenizer, QUERY, text, instruction or INSTRUCTION)
            assert found[index] == pytest.approx(expected, rel=1e-4)
    assert len({round(score, 6) for score in found.values()}) == len(TEXTS)


def test_an_instruction_needs_a_template(reranker):
    with served(reranker[2], classifier_from_token=("no", "yes")) as live:
        body = {"text_1": "a", "text_2": "b", "instruction": "c"}
        response = live.http.post("/score", json=body)
    assert response.status_code == 400 and response.json()["error"]["param"] == "instruction"
