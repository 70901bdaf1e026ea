"""Fine-tune a language model with LoRA on all ranks; put your own model and data here.

Without --model, a small model with random weights learns sums, byte by byte, and nothing is downloaded. --model is the
name of a model of a hub: `deployer fetch` downloads it on the laptop, and the job needs no network.
"""

import argparse
import gc
import hashlib
import json
import os
import random

import torch
import torch.distributed as dist

# Late imports of this would keep the process group, whose threads may abort the process at its end.
import torch.distributed.nn
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

LENGTH = 64  # tokens per sample


def samples(tokenizer):
    """Return samples of LENGTH tokens: sentences about sums."""
    numbers = random.Random(0)
    pairs = ((numbers.randint(1, 9), numbers.randint(1, 9)) for _ in range(4000))
    text = "".join(f"{one} plus {other} is {one + other}. " for one, other in pairs)
    tokens = tokenizer(text)["input_ids"] if tokenizer else list(text.encode())
    blocks = [tokens[start : start + LENGTH] for start in range(0, len(tokens) - LENGTH, LENGTH)]
    return [{"input_ids": torch.tensor(block), "labels": torch.tensor(block)} for block in blocks]


def main():
    """Train, compare the weights of all ranks, and write the losses to the file that DEPLOYER_RESULT names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="the name of a model of a hub")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # the threads of this rank
    if options.model:
        tokenizer, base = (
            AutoTokenizer.from_pretrained(options.model),
            AutoModelForCausalLM.from_pretrained(options.model),
        )
        lora = LoraConfig(task_type="CAUSAL_LM", r=8)
    else:
        config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, loss_type="ForCausalLM")
        tokenizer, base = None, GPT2LMHeadModel(config)
        # Random weights have nothing to keep: the embeddings are trained too.
        lora = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=["c_attn", "c_fc", "c_proj"],
                          modules_to_save=["wte", "lm_head"], fan_in_fan_out=True)  # fmt: skip
    model = get_peft_model(base, lora)
    arguments = TrainingArguments(
        output_dir="checkpoints", max_steps=options.steps, per_device_train_batch_size=8, learning_rate=5e-3,
        logging_steps=10, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, ddp_backend="gloo",
        ddp_find_unused_parameters=False, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=samples(tokenizer))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    trained = (value.detach().numpy().tobytes() for value in model.parameters() if value.requires_grad)
    digest = hashlib.sha256(b"".join(trained)).hexdigest()
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    digests = [digest]
    if ranks > 1:
        digests = [""] * ranks
        dist.all_gather_object(digests, digest)
    if trainer.is_world_process_zero():
        equal = len(set(digests)) == 1
        print(f"{ranks} ranks: loss {losses[0]:.3f}, then {losses[-1]:.3f}; equal weights: {equal}", flush=True)
        model.save_pretrained("adapter")
        if os.environ.get("DEPLOYER_RESULT"):
            with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
                json.dump({"losses": losses, "weights_equal": equal, "world_size": ranks}, stream)
    del trainer, model, base
    gc.collect()  # they keep the process group, whose threads may hang at the end
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
