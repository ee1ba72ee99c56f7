"""Numbers of a training that go bad: losses, gradients, and the step at which that began."""
