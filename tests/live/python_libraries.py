"""Programs of Hugging Face's libraries, as users write them, on small models with random weights: as
python_programs.py."""

import os
import tempfile

import torch

from python_programs import content

import transformers

transformers.logging.set_verbosity_error()
os.environ.setdefault("HF_HUB_OFFLINE", "1")

_LANGUAGE = dict(vocab_size=128, use_cache=False)
_WIDTHS = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4)


def _gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=64, n_layer=3, n_head=4, **_LANGUAGE))


def _llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **_WIDTHS, **_LANGUAGE))


def _mixtral():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **_WIDTHS, **_LANGUAGE))


def _bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=128, **_WIDTHS))


def _train(model, steps, make_inputs, accumulate=1):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 2, steps)
    model.train()
    losses = []
    for _ in range(steps):
        for _ in range(accumulate):
            loss = model(**make_inputs()).loss / accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return content(losses, model, optimizer)


def _tokens():
    ids = torch.randint(0, 128, (4, 24))
    return {"input_ids": ids, "labels": ids}


def gpt2(steps):
    return _train(_gpt2(), steps, _tokens, accumulate=2)


def llama(steps):
    return _train(_llama(), steps, _tokens)


def mixture(steps):
    return _train(_mixtral(), steps, _tokens)


def bert(steps):
    return _train(_bert(), steps, _tokens)


def vit(steps):
    model = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=32, patch_size=8, **_WIDTHS))
    return _train(model, steps,
                  lambda: {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(0, 2, (4,))})


def pretrained(steps):
    """Saved, and loaded again from the file."""
    with tempfile.TemporaryDirectory() as folder:
        _llama().save_pretrained(folder)
        model = transformers.LlamaForCausalLM.from_pretrained(folder)
        return _train(model, steps, _tokens)


def safetensors_midway(steps):
    import safetensors.torch
    model = _gpt2()
    first = _train(model, steps // 2, _tokens)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        safetensors.torch.save_model(model, path)
        again = _gpt2()
        safetensors.torch.load_model(again, path)
    return first + _train(again, steps - steps // 2, _tokens)


def generate(steps):
    model = _llama().eval()
    model.config.use_cache = True
    ids = model.generate(torch.randint(0, 128, (2, 5)), max_new_tokens=4 * steps, do_sample=True, pad_token_id=0)
    return content(ids, model)


class Lines(torch.utils.data.Dataset):
    def __init__(self):
        self.ids = torch.randint(0, 128, (32, 24), generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def _trainer(steps, **options):
    model = _gpt2()
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(model, transformers.TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=4, gradient_accumulation_steps=2,
            eval_strategy="steps", eval_steps=3, save_steps=3, logging_steps=1, report_to=[], use_cpu=True,
            disable_tqdm=True, **options),
            train_dataset=Lines(), eval_dataset=Lines())
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return content(losses, model, trainer.optimizer.optimizer)


def trainer(steps):
    return _trainer(steps)


def trainer_with_workers(steps):
    return _trainer(steps, dataloader_num_workers=2)


def accelerated(steps):
    import accelerate
    model = _gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accelerator = accelerate.Accelerator(cpu=True)
    loader = torch.utils.data.DataLoader(Lines(), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _, batch in zip(range(steps), loader):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return content(losses, model, optimizer.optimizer)


def lora(steps):
    import peft
    model = peft.get_peft_model(_llama(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    return _train(model, steps, _tokens)


PROGRAMS = {program.__name__: program for program in (
    gpt2, llama, mixture, bert, vit, pretrained, safetensors_midway, generate, trainer, trainer_with_workers,
    accelerated, lora)}
