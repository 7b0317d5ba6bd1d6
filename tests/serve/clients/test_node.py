"""JavaScript's clients: npm's openai and Vercel's ai, in the folder that REGARD_NPM names.

`npm install openai ai @ai-sdk/openai-compatible` in any folder, then `REGARD_NPM=FOLDER pytest -m slow`.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.schemas import CONTEXT, SCHEMAS

jsonschema_rs = pytest.importorskip("jsonschema_rs")
FOLDER = Path(os.environ.get("REGARD_NPM", "node_modules/.."))
pytestmark = pytest.mark.slow

OPENAI = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: URL, apiKey: KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "the fox" }];
const how = { model: "talker", messages, max_tokens: 9, temperature: 0 };
const whole = await client.chat.completions.create(how);
let text = "";
for await (const piece of await client.chat.completions.create({ ...how, stream: true }))
  text += piece.choices[0]?.delta?.content ?? "";
const replayed = [...messages, whole.choices[0].message, ...messages];
const again = await client.chat.completions.create({ ...how, messages: replayed });
const options = { temperature: 0, max_output_tokens: 9 };
const response = await client.responses.create({ model: "talker", input: "the fox", ...options });
const vectors = await client.embeddings.create({ model: "embed", input: ["the fox", "dog"] });
const other = new OpenAI({ baseURL: URL, apiKey: "wrong", maxRetries: 0 });
const wrong = await other.models.list().catch((e) => e.status);
const tooLong = [{ role: "user", content: "fox ".repeat(CONTEXT) }];
const errors = [
  () => other.chat.completions.create(how), () => other.responses.create({ model: "talker", input: "x" }),
  () => client.chat.completions.create({ ...how, messages: tooLong }),
  () => client.chat.completions.create({ ...how, messages: tooLong, stream: true }),
  () => client.completions.create({ model: "writer", prompt: tooLong[0].content }),
  () => client.responses.create({ model: "talker", input: tooLong[0].content }),
  () => client.embeddings.create({ model: "embed", input: tooLong[0].content }),
];
const codes = [];
for (const ask of errors) codes.push(await ask().catch((e) => `${e.status} ${e.code}`));
console.log(JSON.stringify({ whole: whole.choices[0].message.content, text, again: again.usage.prompt_tokens,
  response: response.output_text, size: vectors.data[0].embedding.length, wrong, codes }));
"""

VERCEL = """
import { generateText, streamText, generateObject, embed, jsonSchema } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
const server = { name: "regard", baseURL: URL, apiKey: KEY, supportsStructuredOutputs: true };
const regard = createOpenAICompatible(server);
const how = { model: regard("talker"), prompt: "the fox", maxRetries: 0 };
const whole = await generateText({ ...how, temperature: 0, maxOutputTokens: 9 });
let text = "";
const stream = streamText({ ...how, temperature: 0, maxOutputTokens: 9 });
for await (const piece of stream.textStream) text += piece;
const objects = {};
for (const [name, schema] of Object.entries(SCHEMAS))
  objects[name] = (await generateObject({ ...how, maxOutputTokens: 150, schema: jsonSchema(schema) })).object;
const { embedding } = await embed({ model: regard.textEmbeddingModel("embed"), value: "the fox" });
const other = createOpenAICompatible({ ...server, apiKey: "wrong" });
const failed = (e) => `${e.statusCode} ${e.data.error.code}`;
const codes = [
  await generateText({ ...how, model: other("talker") }).catch(failed),
  await generateText({ ...how, prompt: "fox ".repeat(CONTEXT) }).catch(failed),
];
console.log(JSON.stringify({ whole: whole.text, text, objects, codes, size: embedding.length }));
"""


def run(script, address, *packages):
    if shutil.which("node") is None or not all((FOLDER / "node_modules" / p).exists() for p in packages):
        pytest.skip("not installed")
    values = {"URL": address.url, "KEY": address.key, "SCHEMAS": SCHEMAS, "CONTEXT": CONTEXT}
    head = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in values.items())
    command = ["node", "--input-type=module", "-"]
    done = subprocess.run(
        command, input=head + script, cwd=FOLDER, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_npm_openai(address):
    answer = run(OPENAI, address, "openai")
    assert answer["text"] == answer["whole"] == answer["response"]
    assert (answer["size"], answer["wrong"]) == (12, 401)
    assert answer["codes"] == ["401 invalid_api_key"] * 2 + ["400 context_length_exceeded"] * 5


def test_vercel_ai(address):
    answer = run(VERCEL, address, "ai", "@ai-sdk/openai-compatible")
    assert answer["text"] == answer["whole"]
    for name, value in answer["objects"].items():
        assert jsonschema_rs.is_valid(SCHEMAS[name], value), name
    assert answer["codes"] == ["401 invalid_api_key", "400 context_length_exceeded"]
