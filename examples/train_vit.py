"""Trains a small ViT to tell drawn shapes apart: a plain PyTorch loop.

    pip install 'fusewire[train,images]' matplotlib
    python examples/train_vit.py FOLDER [--steps STEPS]
    fusewire serve shapes=FOLDER

The images are drawn here: a bright shape of any size, position and colour on a dark background. The
model, its image processor, an image of each shape and the loss curve, loss.png, are written to
FOLDER.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import fusewire
import torch
import transformers as hf
from fusewire.train import Adam, replace
from matplotlib.figure import Figure
from PIL import Image, ImageDraw
from rich.progress import Progress

SHAPES = ["circle", "cross", "square", "triangle"]
SIDE = 32  # pixels of an image
BATCH = 64
HELD_OUT = 200  # images that are not trained on


def drawn(shape: str) -> Image.Image:
    """Returns an RGB image [SIDE, SIDE] of the shape."""
    dark, bright = (tuple(random.randint(*of) for _ in "RGB") for of in ((0, 90), (120, 255)))
    image = Image.new("RGB", (SIDE, SIDE), dark)
    draw = ImageDraw.Draw(image)
    size = random.randint(12, 24)
    left, top = (random.randint(2, SIDE - 2 - size) for _ in range(2))
    right, bottom, third = left + size, top + size, size // 3
    if shape == "circle":
        draw.ellipse((left, top, right, bottom), bright)
    elif shape == "cross":
        draw.rectangle((left + third, top, right - third, bottom), bright)
        draw.rectangle((left, top + third, right, bottom - third), bright)
    elif shape == "square":
        draw.rectangle((left, top, right, bottom), bright)
    else:
        draw.polygon(((left, bottom), (right, bottom), (left + size // 2, top)), bright)
    return image


def batch(processor: hf.ViTImageProcessor, count: int) -> dict[str, torch.Tensor]:
    """Returns new images: pixels [count, 3, SIDE, SIDE] and labels [count]."""
    labels = [random.randrange(len(SHAPES)) for _ in range(count)]
    images = [drawn(SHAPES[label]) for label in labels]
    pixels = processor(images, return_tensors="pt")["pixel_values"]
    return {"pixel_values": pixels, "labels": torch.tensor(labels)}


def main(folder: str, steps: int) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)  # fails before training rather than after it
    hf.set_seed(0)
    processor = hf.ViTImageProcessor(size={"height": SIDE, "width": SIDE})
    config = hf.ViTConfig(
        image_size=SIDE,
        patch_size=8,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        id2label=dict(enumerate(SHAPES)),
        label2id={name: number for number, name in enumerate(SHAPES)},
    )
    model = replace(hf.ViTForImageClassification(config))
    optimizer = Adam(model.parameters(), lr=1e-3, max_grad_norm=1.0)
    schedule = hf.get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)

    losses = []
    model.train()
    with Progress() as progress:
        bar = progress.add_task("training", total=steps)
        for _ in range(steps):
            loss = model(**batch(processor, BATCH)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            losses.append(loss.item())
            progress.update(bar, advance=1, description=f"training, loss {losses[-1]:.3f}")

    model.eval()
    held_out = batch(processor, HELD_OUT)
    with torch.no_grad():
        right = model(**held_out).logits.argmax(1) == held_out["labels"]
    print(f"accuracy {right.float().mean():.3f} on {HELD_OUT} new images")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    (figure := Figure()).subplots(subplot_kw={"xlabel": "step", "ylabel": "loss"}).plot(losses)
    figure.savefig(f"{folder}/loss.png")

    classifier = fusewire.ImageClassifier(folder)
    for shape in SHAPES:
        drawn(shape).save(path := Path(folder) / f"{shape}.png")
        (best,) = classifier(path, top_k=1)
        print(f"{best['label']:10} {best['score']:.3f}  {path}")
    print(f"To serve it: fusewire serve shapes={folder}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where the model goes")
    parser.add_argument("--steps", type=int, default=600)
    main(**vars(parser.parse_args()))
