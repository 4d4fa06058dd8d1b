"""A work that asks Anthropic in every way."""

import asyncio
import json
import sys

import anthropic

base = sys.argv[1]
client = anthropic.Anthropic(base_url=base, api_key="sk-ant-test", timeout=30)
said = []
TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


def asked(text, **more):
    return {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": text}], **more}


said.append(client.messages.with_raw_response.create(**asked("raw")).text())
said.append(client.messages.create(**asked("plain")).content[0].text)
said.append([event.model_dump_json() for event in client.messages.create(**asked("streamed", stream=True))])
with client.messages.stream(**asked("helped")) as stream:
    said.append(["".join(stream.text_stream), stream.get_final_message().model_dump_json()])
block = client.messages.create(**asked("tools", tools=[TOOL])).content[0]
said.append([block.id, block.input])
with client.messages.stream(**asked("streamed tools", tools=[TOOL])) as stream:
    said.append(stream.get_final_message().model_dump_json())
said.append(client.messages.create(**asked("[429 once]")).content[0].text)
said.append(client.messages.create(**asked("[500 once]")).content[0].text)
said.append(client.with_options(timeout=1, max_retries=5).messages.create(**asked("[stall once]")).content[0].text)

# A stream that is cut is an error, never a short answer. Who asks again gets a whole one.
for _ in range(2):
    try:
        with client.messages.stream(**asked("[cut once] in half")) as stream:
            said.append(stream.get_final_message().model_dump_json())
        break
    except anthropic.APIError:
        pass
    except Exception as error:
        # What its HTTP library says, whichever one it is.
        assert type(error).__name__ == "RemoteProtocolError", error


async def many():
    own = anthropic.AsyncAnthropic(base_url=base, api_key="sk-ant-test", timeout=30)
    answers = await asyncio.gather(*[own.messages.create(**asked("at once")) for _ in range(8)])
    said.append([answer.content[0].text for answer in answers])
    async with own.messages.stream(**asked("async streamed")) as stream:
        said.append((await stream.get_final_message()).model_dump_json())


asyncio.run(many())
assert len(set(said[-2])) == 1, said[-2]
print(json.dumps(said))
