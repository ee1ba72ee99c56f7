"""What JAX programs write: Orbax with its arrays in OCDBT or zarr, and flax's msgpack."""
