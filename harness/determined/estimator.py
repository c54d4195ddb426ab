"""Gone, as TensorFlow's estimators are: importing it says what to use."""

from determined._later import gone

raise gone(__name__, "TensorFlow has removed estimators; train with determined.keras.DeterminedCallback in model.fit")
