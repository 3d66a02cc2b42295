"""Train a tiny text classifier and save it with transformers, which `shoal serve` loads.

The classifier detects the mood of a text. Change this script, and run it again: `python train.py`. To serve another
model, save it with `AutoModelForSequenceClassification.from_pretrained(...).save_pretrained(folder)`, and its tokenizer
likewise.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

FOLDER = Path(__file__).parent
TEXTS = {
    "good": ["a good day", "what a lovely fish", "great", "the sea is lovely", "good food"],
    "bad": ["a bad day", "what an awful fish", "late again", "the sea is awful", "bad food"],
}

words = sorted({word for texts in TEXTS.values() for text in texts for word in text.split()})
vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
raw = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
raw.normalizer, raw.pre_tokenizer = Lowercase(), Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", pad_token="[PAD]", model_max_length=64)

torch.manual_seed(0)
labels = dict(enumerate(TEXTS))
config = BertConfig(
    vocab_size=len(vocabulary),
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=64,
    pad_token_id=0,
    id2label=labels,
    label2id={label: number for number, label in labels.items()},
)
model = BertForSequenceClassification(config)
batch = tokenizer([text for texts in TEXTS.values() for text in texts], padding=True, return_tensors="pt")
right = torch.tensor([number for number, label in labels.items() for _ in TEXTS[label]])
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
for _ in range(60):
    loss = model(**batch, labels=right).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model.eval().save_pretrained(FOLDER)
tokenizer.save_pretrained(FOLDER)
