"""From a model directory to logits and text: configuration, decoder, loader, tokenizer, chat template, tiny model."""
