"""A work that asks OpenAI in every way. Only the base address knows of the gateway; retries are the SDK's own."""

import asyncio
import json
import sys

import httpx
import openai

base = sys.argv[1]
client = openai.OpenAI(base_url=base, api_key="sk-test", timeout=30)
said = []


def messages(text):
    return [{"role": "user", "content": text}]


def chat(text, who=client, **more):
    return who.chat.completions.create(model="gpt-4o", messages=messages(text), **more)


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}

said.append(client.chat.completions.with_raw_response.create(model="gpt-4o", messages=messages("raw")).text)
said.append(chat("plain").choices[0].message.content)
said.append([chunk.model_dump_json() for chunk in chat("streamed", stream=True)])
said.append([chunk.model_dump_json() for chunk in chat("counted", stream=True, stream_options={"include_usage": True})])
call = chat("tools", tools=[WEATHER]).choices[0].message.tool_calls[0]
said.append([call.id, call.function.arguments])
said.append([chunk.model_dump_json() for chunk in chat("streamed tools", tools=[WEATHER], stream=True)])
said.append(json.loads(chat("as json", response_format={"type": "json_object"}).choices[0].message.content))
said.append(client.responses.create(model="gpt-4o", input="a response").output_text)
with client.responses.stream(model="gpt-4o", input="a streamed response") as stream:
    said.append([event.type for event in stream] + [stream.get_final_response().output_text])
said.append(client.embeddings.create(model="text-embedding-3-small", input="embed", encoding_format="float").data[0].embedding)
said.append(chat("[429 once] politely").choices[0].message.content)
said.append(chat("[500 once] oops").choices[0].message.content)
# It does not answer in time, the SDK asks again, and that is the same question: it is answered once.
said.append(chat("[stall once] slowly", who=client.with_options(timeout=1, max_retries=5)).choices[0].message.content)
# A stream that is cut is an error, never a short answer. Who asks again gets a whole one.
for _ in range(2):
    try:
        said.append("".join(chunk.choices[0].delta.content or "" for chunk in chat("[cut once] in half", stream=True)))
        break
    except (httpx.RemoteProtocolError, openai.APIError):
        pass


async def many():
    own = openai.AsyncOpenAI(base_url=base, api_key="sk-test", timeout=30)
    asked = [own.chat.completions.create(model="gpt-4o", messages=messages("at once")) for _ in range(8)]
    said.append([answer.choices[0].message.content for answer in await asyncio.gather(*asked)])
    stream = await own.chat.completions.create(model="gpt-4o", messages=messages("async streamed"), stream=True)
    said.append([chunk.model_dump_json() async for chunk in stream])


asyncio.run(many())
assert len(set(said[-2])) == 1, said[-2]
print(json.dumps(said))
