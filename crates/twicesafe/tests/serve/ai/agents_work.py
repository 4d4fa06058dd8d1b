"""A whole program of the OpenAI Agents SDK, and one of LangChain, as their guides have them."""

import json
import os
import sys

os.environ["OPENAI_BASE_URL"] = sys.argv[1]
os.environ["OPENAI_API_KEY"] = "sk-test"
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

from agents import Agent, Runner, function_tool  # noqa: E402
from langchain_core.prompts import ChatPromptTemplate  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402

used = []


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    used.append(city)
    return f"it is sunny in {city}"


agent = Agent(name="helper", instructions="Be helpful.", tools=[weather], model="gpt-4o")
result = Runner.run_sync(agent, "What should I wear?")
calls = [item.raw_item.call_id for item in result.new_items if item.type == "tool_call_item"]
said = [result.final_output, used, calls]

model = ChatOpenAI(model="gpt-4o")
chain = ChatPromptTemplate.from_messages([("system", "You translate."), ("human", "{text}")]) | model
said.append(chain.invoke({"text": "good morning"}).content)
said.append([part.content for part in chain.stream({"text": "good evening"})])
said.append([answer.content for answer in chain.batch([{"text": "one"}, {"text": "two"}, {"text": "one"}])])
said.append(model.bind_tools([{"name": "lookup", "description": "d", "parameters": {"type": "object", "properties": {}}}]).invoke("go").tool_calls)
print(json.dumps(said))
