"""Tiny random checkpoints of the families that read pictures, and transformers' answers."""

import io
import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from PIL import Image

from tests.lazy_packages import lazy_package

torch = pytest.importorskip("torch")
transformers = lazy_package("transformers")

#: Ids of special tokens follow those of bytes and of three merges.
MERGES = [("Ċ", "Ċ"), ("ĊĊ", "Ċ"), ("e", "r"), ("Ċ", "H")]
FIRST_SPECIAL = 256 + len(MERGES)
VOCAB_SIZE = 384
TEXT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 1024,
    "bos_token_id": FIRST_SPECIAL,
    "eos_token_id": FIRST_SPECIAL + 1,
    "pad_token_id": None,
}


@dataclass
class PictureFamily:
    """How a family's checkpoint and processor are made.

    Attributes:
        specials: Its special tokens in the order of their ids; the first two begin and end a text.
        template: Its chat template.
        row: The one that stands for a row of a picture.
        model: Makes the model, of ids by special token.
        image_processor: ``module.Class`` of transformers that uses Pillow.
        settings: What that is made of.
        processor: The class that writes prompts, or its name in transformers.
        tokens: Attributes of the tokenizer that it asks for.
        more: Further arguments of it.
    """

    specials: list[str]
    template: str
    row: str
    model: Any
    image_processor: str
    settings: dict[str, Any]
    processor: Any
    tokens: dict[str, str] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def ids(self):
        """Ids by special token."""
        return {text: FIRST_SPECIAL + n for n, text in enumerate(self.specials)}

    def write(self, folder):
        """Write a checkpoint; return the model in float32."""
        model = self.model(self.ids)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(0, 0.15, generator=generator)
                if "norm" in name and name.endswith("weight"):
                    parameter.add_(1.0)
        model = model.eval().float()
        model.save_pretrained(folder)
        self._write_tokenizer(folder)
        self._image_processor().save_pretrained(folder)
        return model

    def create_processor(self, folder):
        """Return transformers' processor, on Pillow."""
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        for name, text in self.tokens.items():
            setattr(tokenizer, name, text)
            setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(text))
        made = self.processor
        made = getattr(transformers, made) if isinstance(made, str) else made
        return made(image_processor=self._image_processor(), tokenizer=tokenizer, **self.more)

    def _image_processor(self):
        module, name = self.image_processor.split(".")
        path = f"transformers.models.{module}.image_processing_pil_{module}"
        return getattr(pytest.importorskip(path), name)(**self.settings)

    def _write_tokenizer(self, folder):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = [*letters, *("".join(pair) for pair in MERGES)]
        tokenizer = Tokenizer(models.BPE({text: n for n, text in enumerate(vocabulary)}, MERGES))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(self.specials)
        tokenizer.save(str(folder / "tokenizer.json"))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": self.specials[0],
            "eos_token": self.specials[1],
            "chat_template": self.template,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def greedy(model, processor, messages, files, num_tokens):
    """Return the prompt's tokens and those that transformers answers with.

    Args:
        model: The model.
        processor: Of its family.
        messages: A conversation whose pictures are ``{"type": "image"}``.
        files: The pictures.
        num_tokens: How many to draw.
    """
    text = processor.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    images = [Image.open(io.BytesIO(data)) for data in files]
    images = [picture_on_white(image) for image in images]
    inputs = processor(text=[text], images=[images], return_tensors="pt", add_special_tokens=False)
    # No token ends a text: as ours, it may come and the text goes on.
    made = model.generate(**inputs, max_new_tokens=num_tokens, eos_token_id=-1, do_sample=False)
    prompt = inputs["input_ids"][0].tolist()
    return prompt, made[0, len(prompt) :].tolist()


def picture_on_white(image):
    """Return a picture as red, green and blue, as ours become."""
    if "A" not in image.getbands():
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def _gemma3(ids):
    vision = transformers.SiglipVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=56,
        patch_size=7,
        vision_use_head=False,
    )
    text = transformers.Gemma3TextConfig(
        **TEXT,
        head_dim=20,
        sliding_window=21,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=30,
    )
    config = transformers.Gemma3Config(
        vision_config=vision,
        text_config=text,
        mm_tokens_per_image=16,
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
    )
    return transformers.Gemma3ForConditionalGeneration(config)


class QwenProcessor:
    """Qwen2VLProcessor without its part for videos, which cannot be made without torchvision."""

    def __init__(self, image_processor, tokenizer):
        self.image_processor, self.tokenizer = image_processor, tokenizer

    def __call__(self, text, images, **kwargs):
        inputs = self.image_processor(images, return_tensors="pt")
        before, *after = text[0].split("<|image_pad|>")
        counts = (inputs["image_grid_thw"].prod(1) // 4).tolist()
        pairs = zip(counts, after, strict=True)
        written = before + "".join("<|image_pad|>" * count + rest for count, rest in pairs)
        ids = torch.tensor([self.tokenizer.encode(written, add_special_tokens=False)])
        row = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        return {
            **inputs,
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "mm_token_type_ids": (ids == row).int(),
        }


def _qwen(version, ids, **vision):
    module = f"transformers.models.qwen{version}_vl.configuration_qwen{version}_vl"
    configs = pytest.importorskip(module)
    name = f"Qwen{version}{'_' * ('_' in version)}VL"
    text = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    config = getattr(configs, f"{name}Config")(
        vision_config={"patch_size": 7, "num_heads": 2, **vision},
        text_config={**TEXT, "rope_parameters": text},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def _qwen2(ids):
    return _qwen("2", ids, depth=3, embed_dim=32, hidden_size=64, mlp_ratio=2)


def _qwen2_5(ids):
    sizes = {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48}
    windows = {"window_size": 42, "fullatt_block_indexes": [1]}
    return _qwen("2_5", ids, depth=3, **sizes, **windows)


def _idefics3(kind, ids):
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 2, "image_size": 56, "patch_size": 7,
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(
        vision_config=vision,
        text_config={**TEXT, "model_type": "llama"},
        image_token_id=ids["<image>"],
        scale_factor=2,
    )
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config)


_IDEFICS3 = PictureFamily(
    specials=[
        "<|endoftext|>", "<end_of_utterance>", "<|im_start|>", "<fake_token_around_image>",
        "<image>", "<global-img>", *(f"<row_{n}_col_{m}>" for n in (1, 2) for m in (1, 2, 3)),
    ],
    template=(
        "<|im_start|>{% for message in messages %}{{ message.role | capitalize }}"
        "{% if message.content is string %}{{ ': ' + message.content }}{% else %}"
        "{% if message.content[0].type == 'image' %}:{% else %}{{ ': ' }}{% endif %}"
        "{% for line in message.content %}{% if line.type == 'text' %}{{ line.text }}"
        "{% elif line.type == 'image' %}<image>{% endif %}{% endfor %}{% endif %}"
        "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
    ),
    row="<image>",
    model=partial(_idefics3, "Idefics3"),
    image_processor="idefics3.Idefics3ImageProcessorPil",
    settings={"size": {"longest_edge": 3 * 56}, "max_image_size": {"longest_edge": 56}},
    processor="Idefics3Processor",
    more={"image_seq_len": 16},
)  # fmt: skip

_QWEN = PictureFamily(
    specials=[
        "<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|vision_start|>", "<|vision_end|>",
        "<|image_pad|>", "<|video_pad|>",
    ],
    template=(
        "{% for message in messages %}{% if loop.first and message.role != 'system' %}"
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
        "<|im_start|>{{ message.role }}\n{% if message.content is string %}"
        "{{ message.content }}<|im_end|>\n{% else %}{% for content in message.content %}"
        "{% if content.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
        "{% elif 'text' in content %}{{ content.text }}{% endif %}{% endfor %}<|im_end|>\n"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    row="<|image_pad|>",
    model=_qwen2,
    image_processor="qwen2_vl.Qwen2VLImageProcessorPil",
    settings={
        "patch_size": 7,
        "size": {"shortest_edge": 28 * 28, "longest_edge": 112 * 112},
    },
    processor=QwenProcessor,
)  # fmt: skip


def _llava(kind, vision, text, ids, **more):
    text = getattr(transformers, f"{text}Config")(**TEXT)
    config = getattr(transformers, f"{kind}Config")(
        vision_config=vision,
        text_config=text,
        image_token_index=ids["<image>"],
        image_grid_pinpoints=GRIDS,
        **more,
    )
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config)


def _next(ids):
    vision = {**_TOWER, "model_type": "clip_vision_model", "projection_dim": 32}
    return _llava("LlavaNext", vision, "Llama", ids)


def _onevision(ids):
    vision = {**_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False}
    video = {"video_token_index": ids["<video>"]}
    return _llava("LlavaOnevision", vision, "Qwen2", ids, vision_aspect_ratio=RATIO, **video)


class OnevisionProcessor:
    """LlavaOnevisionProcessor without its part for videos, which asks for torchvision."""

    def __init__(self, image_processor, tokenizer):
        self.image_processor, self.tokenizer = image_processor, tokenizer
        name = "transformers.models.llava_onevision.processing_llava_onevision"
        made = pytest.importorskip(name).LlavaOnevisionProcessor
        self._made = made.__new__(made)
        self._made.image_processor = image_processor
        self._made.image_token = "<image>"
        self._made.num_image_tokens = 16
        self._made.vision_aspect_ratio = RATIO
        self._made.vision_feature_select_strategy = "full"

    def __call__(self, text, images, **kwargs):
        inputs = self.image_processor(images, return_tensors="pt")
        before, *after = text[0].split("<image>")
        written = before + "".join(
            self._made.replace_image_token(inputs, number) + rest
            for number, rest in enumerate(after)
        )
        ids = torch.tensor([self.tokenizer.encode(written, add_special_tokens=False)])
        return {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}


_TOWER = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
    "image_size": 30, "patch_size": 7,
}  # fmt: skip
GRIDS = [[30, 30], [30, 60], [60, 30], [60, 60], [30, 90], [90, 30], [90, 60]]
RATIO = "anyres_max_2"
_NEXT = PictureFamily(
    specials=["<s>", "</s>", "<image>", "<video>"],
    template=(
        "{{ bos_token }}{% for message in messages %}{{ message.role }}\n"
        "{% if message.content is string %}{{ message.content }}{% else %}"
        "{% for content in message.content %}{% if content.type == 'image' %}<image>\n"
        "{% else %}{{ content.text }}{% endif %}{% endfor %}{% endif %}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}assistant\n{% endif %}"
    ),
    row="<image>",
    model=_next,
    image_processor="llava_next.LlavaNextImageProcessorPil",
    settings={
        "size": {"shortest_edge": 30},
        "crop_size": {"height": 30, "width": 30},
        "image_grid_pinpoints": GRIDS,
    },
    processor="LlavaNextProcessor",
    more={
        "patch_size": 7,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    },
)


def _pan_and_scan(**parts):
    """Return Gemma3Processor as the file of its pictures says, which its own defaults hide."""
    made = transformers.Gemma3Processor(**parts)
    made.images_kwargs = {"do_convert_rgb": True}
    return made


_GEMMA = PictureFamily(
    specials=[
        "<bos>",
        "<eos>",
        "<start_of_turn>",
        "<end_of_turn>",
        "<start_of_image>",
        "<end_of_image>",
        "<image_soft_token>",
    ],
    template=(
        "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message.role }}\n"
        "{% if message.content is string %}{{ message.content | trim }}{% else %}"
        "{% for item in message.content %}{% if item.type == 'image' %}<start_of_image>"
        "{% else %}{{ item.text | trim }}{% endif %}{% endfor %}{% endif %}<end_of_turn>\n"
        "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    row="<image_soft_token>",
    model=_gemma3,
    image_processor="gemma3.Gemma3ImageProcessorPil",
    settings={
        "size": {"height": 56, "width": 56},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
    processor="Gemma3Processor",
    tokens={
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    },
    more={"image_seq_length": 16},
)

FAMILIES = {
    "gemma3": _GEMMA,
    "gemma3-crops": replace(
        _GEMMA,
        settings={
            **_GEMMA.settings,
            "do_pan_and_scan": True,
            "pan_and_scan_min_crop_size": 20,
            "pan_and_scan_max_num_crops": 3,
            "pan_and_scan_min_ratio_to_activate": 1.3,
        },
        processor=_pan_and_scan,
    ),
    "idefics3": _IDEFICS3,
    "smolvlm": replace(
        _IDEFICS3,
        model=partial(_idefics3, "SmolVLM"),
        image_processor="smolvlm.SmolVLMImageProcessorPil",
    ),
    "idefics3-whole": replace(
        _IDEFICS3, settings={**_IDEFICS3.settings, "do_image_splitting": False}
    ),
    "llava_next": _NEXT,
    "llava_onevision": replace(
        _NEXT,
        model=_onevision,
        image_processor="llava_onevision.LlavaOnevisionImageProcessorPil",
        settings={"size": {"height": 30, "width": 30}, "image_grid_pinpoints": GRIDS},
        processor=OnevisionProcessor,
        more={},
    ),
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": replace(_QWEN, model=_qwen2_5),
}  # fmt: skip
