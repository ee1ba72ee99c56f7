"""What the Trainer of Transformers, Accelerate and PEFT write."""
