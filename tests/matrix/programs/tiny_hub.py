"""Make tiny models with random weights, and tiny data sets, under the names that published scripts ask for.

    python3 tiny_hub.py OUTPUT

Runs where torch, transformers, datasets and sentence-transformers are. OUTPUT gets models/OWNER/NAME and
datasets/OWNER/NAME, each as the files of one revision. Everything is drawn with a seed.
"""

import json
import os
import random
import sys

import torch
import transformers
from datasets import ClassLabel, Dataset, Features, Value
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

WORDS = (  # noqa: SIM905 - words
    "the a of and in it was for on with as that by is at from this which one had were all they there been time more"
    " ship sea wind tree house river stone road light night day hand eye voice water fire bread king child old new"
    " large red green went came saw made took gave found left held kept"
).split()
DRAW = random.Random(7)
CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def sentence(least=5, most=14):
    return " ".join(DRAW.choice(WORDS) for _ in range(DRAW.randint(least, most))).capitalize() + "."


def text(sentences):
    return " ".join(sentence() for _ in range(sentences))


# ----------------------------------------------------------------------------------------------------------- tokenizers
def of_words(cls="[CLS]", sep="[SEP]", pad="[PAD]", unk="[UNK]", mask="[MASK]", bytes_=False):
    """Return a tokenizer as BERT's, or as RoBERTa's with ``bytes_``."""
    signs = [cls, pad, sep, unk, mask] if bytes_ else [pad, unk, cls, sep, mask]
    if bytes_:
        made = of_bytes_only(signs)
    else:
        letters = [chr(code) for code in range(33, 127)]
        vocabulary = [
            *signs,
            *letters,
            *(f"##{letter}" for letter in letters),
            *WORDS,
            *(w.capitalize() for w in WORDS),
        ]
        table = {word: index for index, word in enumerate(dict.fromkeys(vocabulary))}
        made = Tokenizer(models.WordPiece(table, unk_token=unk))
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece()
    ends = [(each, made.token_to_id(each)) for each in (cls, sep)]
    made.post_processor = processors.TemplateProcessing(f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1", ends)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=128,
        cls_token=cls,
        sep_token=sep,
        pad_token=pad,
        unk_token=unk,
        mask_token=mask,
    )


def of_bytes_only(signs):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    table = {word: index for index, word in enumerate([*signs, *alphabet])}
    made = Tokenizer(models.BPE(table, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(signs)
    return made


def of_bytes(end="<|endoftext|>", pad=None, more=(), chat=None):
    """Return a tokenizer as GPT-2's, a token for each byte."""
    made = of_bytes_only([end, *([pad] if pad else []), *more])
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=1024, bos_token=end, eos_token=end, unk_token=end, pad_token=pad
    )
    made.chat_template = chat
    return made


# --------------------------------------------------------------------------------------------------------------- models
def save(out, name, model, tokenizer, license_="apache-2.0"):
    folder = os.path.join(out, "models", name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    card(folder, {"license": license_, "library_name": "transformers"})


def card(folder, front):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "README.md"), "w") as stream:  # JSON is YAML
        stream.write("---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in front.items()))
        stream.write("---\n\nMade for tests, with random numbers.\n")


def language_models(out):
    tokenizer = of_bytes()
    config = transformers.GPT2Config(
        vocab_size=50257, n_positions=1024, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )  # as many as the tokens of tiktoken
    save(out, "openai-community/gpt2", transformers.GPT2LMHeadModel(config), tokenizer, "mit")
    tokenizer = of_bytes("</s>", more=["<s>"])
    for name in ("HuggingFaceTB/SmolLM-360M", "huggyllama/llama-7b"):
        config = transformers.LlamaConfig(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, **SMALL)
        save(out, name, transformers.LlamaForCausalLM(config), tokenizer)
    tokenizer = of_bytes("<|endoftext|>", "<|pad|>", ["<|im_start|>", "<|im_end|>"], CHAT)
    for name in ("Qwen/Qwen2-0.5B", "Qwen/Qwen2-0.5B-Instruct"):
        config = transformers.Qwen2Config(
            vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, num_key_value_heads=2, **SMALL
        )
        save(out, name, transformers.Qwen2ForCausalLM(config), tokenizer)


def encoders(out):
    words = of_words()
    for name in ("google-bert/bert-base-cased", "google-bert/bert-base-uncased"):
        config = transformers.BertConfig(vocab_size=len(words), **SMALL)
        save(out, name, transformers.BertForMaskedLM(config), words)
    config = transformers.DistilBertConfig(vocab_size=len(words), dim=32, n_layers=2, n_heads=4, hidden_dim=64)
    save(out, "distilbert/distilbert-base-uncased", transformers.DistilBertForMaskedLM(config), words)
    bytes_ = of_words("<s>", "</s>", "<pad>", "<unk>", "<mask>", bytes_=True)
    config = transformers.RobertaConfig(
        vocab_size=len(bytes_), max_position_embeddings=130, pad_token_id=1, bos_token_id=0, eos_token_id=2, **SMALL
    )
    save(out, "distilbert/distilroberta-base", transformers.RobertaForMaskedLM(config), bytes_)
    config.num_labels = 1
    name = "cross-encoder/stsb-distilroberta-base"
    save(out, name, transformers.RobertaForSequenceClassification(config), bytes_)


def sentence_encoder(out):
    import sentence_transformers

    plain = os.path.join(out, "models", "google-bert/bert-base-uncased")
    made = sentence_transformers.SentenceTransformer(plain, device="cpu")
    for name in ("all-MiniLM-L6-v2", "all-distilroberta-v1", "allenai-specter"):
        folder = os.path.join(out, "models", "sentence-transformers", name)
        made.save(folder)
        card(folder, {"license": "apache-2.0", "library_name": "sentence-transformers"})


# ------------------------------------------------------------------------------------------------------------ data sets
def write(out, name, splits, config="default", features=None, license_="mit"):
    """Write one configuration of a data set, as parquet."""
    folder = os.path.join(out, "datasets", name)
    os.makedirs(os.path.join(folder, config), exist_ok=True)
    for split, rows in splits.items():
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        made = Dataset.from_dict(columns, features=features)
        made.to_parquet(os.path.join(folder, config, f"{split}-00000-of-00001.parquet"))
    kept = os.path.join(folder, ".configs.json")
    configs = json.load(open(kept)) if os.path.exists(kept) else []
    files = [{"split": split, "path": f"{config}/{split}-*"} for split in splits]
    configs.append({"config_name": config, "data_files": files})
    json.dump(configs, open(kept, "w"))
    card(folder, {"license": license_, "configs": configs})


def data_sets(out):
    for config in ("wikitext-2-raw-v1", "wikitext-2-v1"):
        splits = {split: [{"text": text(3)} for _ in range(3 * rows)] for split, rows in SIZES.items()}
        write(out, "Salesforce/wikitext", splits, config, license_="cc-by-sa-3.0")
    features = Features(
        sentence1=Value("string"),
        sentence2=Value("string"),
        label=ClassLabel(names=["not_equivalent", "equivalent"]),
        idx=Value("int32"),
    )
    pairs = {split: [pair(index) for index in range(rows)] for split, rows in SIZES.items()}
    write(out, "nyu-mll/glue", pairs, "mrpc", features, "other")
    scored = {
        split: [{"sentence1": sentence(), "sentence2": sentence(), "score": DRAW.random()} for _ in range(rows)]
        for split, rows in SIZES.items()
    }
    write(out, "sentence-transformers/stsb", scored)
    chats = {split: [{"messages": chat(4), "num_turns": 2} for _ in range(rows)] for split, rows in FEW.items()}
    write(out, "trl-lib/Capybara", chats)
    chosen = {split: [preference() for _ in range(rows)] for split, rows in FEW.items()}
    write(out, "trl-lib/ultrafeedback_binarized", chosen)
    write(out, "smangrul/ultrachat-10k-chatml", chats)
    judged = {split: [judgement() for _ in range(rows)] for split, rows in FEW.items()}
    write(out, "trl-lib/kto-mix-14k", judged)
    as_lines(out, "meta-math/MetaMathQA", "MetaMathQA-395K.json", [question() for _ in range(60)], True)
    shards(out)
    write(out, "Skylion007/openwebtext", {"train": [{"text": text(9)} for _ in range(3000)]}, "plain_text")
    fine = [{"text": text(9), "id": str(number), "score": 3.0} for number in range(300)]
    write(out, "HuggingFaceFW/fineweb-edu", {"train": fine}, "sample-10BT", license_="odc-by")
    as_lines(out, "yahma/alpaca-cleaned", "alpaca_data_cleaned.json", [task() for _ in range(60)], True)
    lines = [{"text": f"### Human: {sentence()}### Assistant: {sentence()}"} for _ in range(60)]
    as_lines(out, "timdettmers/openassistant-guanaco", "openassistant_best_replies_train.jsonl", lines, False)
    as_lines(out, "timdettmers/openassistant-guanaco", "openassistant_best_replies_eval.jsonl", lines[:9], False)


SIZES = {"train": 200, "validation": 40, "test": 40}
FEW = {"train": 40, "test": 8}


def pair(index):
    return {"sentence1": sentence(), "sentence2": sentence(), "label": DRAW.randrange(2), "idx": index}


def chat(turns):
    return [{"role": ("user", "assistant")[turn % 2], "content": sentence()} for turn in range(turns)]


def preference():
    """Return two answers to one question."""
    asked, answer = chat(2)
    return {"chosen": [asked, answer], "rejected": [asked, {**answer, "content": sentence()}]}


def judgement():
    asked, answer = chat(2)
    return {"prompt": [asked], "completion": [answer], "label": DRAW.random() < 0.5}


def question():
    asked, answer = sentence(), sentence()
    return {"query": asked, "original_question": asked, "response": answer, "type": "MATH_Rephrased"}


def shards(out):
    """Write three of the shards that nanochat downloads."""
    folder = os.path.join(out, "datasets", "karpathy/climbmix-400b-shuffle")
    os.makedirs(folder, exist_ok=True)
    for number in (0, 1, 6542):
        rows = [{"text": text(9)} for _ in range(100)]
        Dataset.from_list(rows).to_parquet(os.path.join(folder, f"shard_{number:05d}.parquet"))
    card(folder, {"license": "mit"})


def task():
    return {"instruction": sentence(), "input": DRAW.choice(["", sentence()]), "output": sentence()}


def as_lines(out, name, file, rows, whole):
    folder = os.path.join(out, "datasets", name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, file), "w") as stream:
        stream.write(json.dumps(rows, indent=1) if whole else "".join(json.dumps(row) + "\n" for row in rows))
    if not os.path.exists(os.path.join(folder, "README.md")):
        card(folder, {"license": "cc-by-4.0"})


def main(out):
    torch.manual_seed(7)
    language_models(out)
    encoders(out)
    sentence_encoder(out)
    data_sets(out)
    for folder, _, names in os.walk(out):
        if ".configs.json" in names:
            os.unlink(os.path.join(folder, ".configs.json"))


main(sys.argv[1])
