// A work that asks OpenAI and Anthropic from Node. The SDKs' own retries are on.
const OpenAI = require('openai').default
const Anthropic = require('@anthropic-ai/sdk').default

const [openaiBase, anthropicBase] = process.argv.slice(2)
const openai = new OpenAI({ baseURL: openaiBase, apiKey: 'sk-test', timeout: 30000 })
const anthropic = new Anthropic({ baseURL: anthropicBase, apiKey: 'sk-ant-test', timeout: 30000 })
const said = []
const messages = (content) => [{ role: 'user', content }]
const chat = (text, more = {}, options = {}) =>
  openai.chat.completions.create({ model: 'gpt-4o', messages: messages(text), ...more }, options)
const message = (text, more = {}, options = {}) =>
  anthropic.messages.create({ model: 'claude-sonnet-4-5', max_tokens: 100, messages: messages(text), ...more }, options)
const all = async (stream) => {
  const events = []
  for await (const event of stream) events.push(JSON.stringify(event))
  return events
}
const tool = { type: 'function', function: { name: 'weather', parameters: { type: 'object', properties: {} } } }

async function main() {
  said.push(await (await chat('node raw').asResponse()).text())
  said.push((await chat('node plain')).choices[0].message.content)
  said.push(await all(await chat('node streamed', { stream: true })))
  said.push((await chat('node tools', { tools: [tool] })).choices[0].message.tool_calls[0].id)
  said.push((await openai.responses.create({ model: 'gpt-4o', input: 'node response' })).output_text)
  said.push(await all(await openai.responses.create({ model: 'gpt-4o', input: 'node streamed response', stream: true })))
  said.push((await openai.embeddings.create({ model: 'text-embedding-3-small', input: 'node embed', encoding_format: 'float' })).data)
  said.push((await chat('node [429 once]')).choices[0].message.content)
  said.push((await chat('node [500 once]')).choices[0].message.content)
  said.push((await chat('node [stall once]', {}, { timeout: 1000, maxRetries: 5 })).choices[0].message.content)
  said.push((await message('claude plain')).content[0].text)
  said.push(await all(await message('claude streamed', { stream: true })))
  said.push((await message('claude tools', { tools: [{ name: 'weather', input_schema: { type: 'object' } }] })).content[0].id)
  said.push((await message('claude [500 once]')).content[0].text)
  // A stream that is cut is an error, never a short answer. Who asks again gets a whole one.
  for (let round = 0; round < 2; round++) {
    try {
      said.push(await all(await chat('node [cut once]', { stream: true })))
      break
    } catch {}
  }
  const once = await Promise.all([...Array(8)].map(() => chat('node at once')))
  said.push(once.map((answer) => answer.choices[0].message.content))
  if (new Set(said.at(-1)).size !== 1) throw new Error('several answers to one question: ' + said.at(-1))
  console.log(JSON.stringify(said))
}
main().catch((error) => { console.error(error); process.exit(1) })
