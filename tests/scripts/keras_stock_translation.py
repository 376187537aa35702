"""Sequences to sequences: two inputs, states of an LSTM, and an inference model made of the saved one's layers."""

import keras
import numpy as np

num_encoder_tokens, num_decoder_tokens, latent_dim, length = 9, 10, 16, 6
tokens = np.random.randint(num_encoder_tokens, size=(250, length))
encoder_input_data = np.eye(num_encoder_tokens, dtype="float32")[tokens]
decoder_input_data = np.zeros((250, length + 1, num_decoder_tokens), "float32")
decoder_target_data = np.zeros((250, length + 1, num_decoder_tokens), "float32")
for i, row in enumerate(tokens):
    decoder_input_data[i, 0, 9] = 1.0
    decoder_input_data[i, np.arange(1, length + 1), row[::-1]] = 1.0
    decoder_target_data[i, np.arange(length), row[::-1]] = 1.0
    decoder_target_data[i, length, 9] = 1.0

encoder_inputs = keras.Input(shape=(None, num_encoder_tokens))
encoder = keras.layers.LSTM(latent_dim, return_state=True)
encoder_outputs, state_h, state_c = encoder(encoder_inputs)
encoder_states = [state_h, state_c]
decoder_inputs = keras.Input(shape=(None, num_decoder_tokens))
decoder_lstm = keras.layers.LSTM(latent_dim, return_sequences=True, return_state=True)
decoder_outputs, _, _ = decoder_lstm(decoder_inputs, initial_state=encoder_states)
decoder_dense = keras.layers.Dense(num_decoder_tokens, activation="softmax")
decoder_outputs = decoder_dense(decoder_outputs)
model = keras.Model([encoder_inputs, decoder_inputs], decoder_outputs)

model.compile(optimizer="rmsprop", loss="categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    [encoder_input_data, decoder_input_data],
    decoder_target_data,
    batch_size=64,
    epochs=2,
    validation_split=0.2,
)
model.save("s2s_model.keras")

loaded = keras.models.load_model("s2s_model.keras")
encoder_inputs = loaded.input[0]
encoder_outputs, state_h_enc, state_c_enc = loaded.layers[2].output
encoder_model = keras.Model(encoder_inputs, [state_h_enc, state_c_enc])
states_value = encoder_model.predict(encoder_input_data[:1], verbose=0)
print([state.shape for state in states_value])
