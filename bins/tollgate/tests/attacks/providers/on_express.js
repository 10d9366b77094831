// A provider on Express: its parsers take a body of any content type, in every charset of Unicode, compressed,
// and a form as well.
'use strict'

const express = require('express')

// The answer of a model to which no maximum is stated.
const LONGEST = 4000
const LIMIT = '64mb'

const seen = new Map()
const app = express()
const keep = (request, response, buffer, encoding) => {
  request.text = buffer.toString(encoding === 'utf-8' ? 'utf8' : 'latin1')
}
app.use(express.urlencoded({ extended: true, limit: LIMIT, verify: keep }))
app.use(express.json({ type: () => true, strict: false, limit: LIMIT, verify: keep }))

function read (request) {
  const fields = request.body && typeof request.body === 'object' ? request.body : {}
  const options = fields.stream_options
  const maximum = Number(fields.max_completion_tokens || fields.max_tokens || LONGEST)
  const n = Number(fields.n || 1)
  const headers = []
  for (let at = 0; at < request.rawHeaders.length; at += 2) {
    headers.push([request.rawHeaders[at].toLowerCase(), request.rawHeaders[at + 1]])
  }
  const length = (request.text || '').length
  const call = {
    model: fields.model === undefined ? null : fields.model,
    max_tokens: maximum,
    stream: Boolean(fields.stream),
    include_usage: Boolean(options && options.include_usage),
    n,
    tools: (fields.tools || []).length,
    service_tier: fields.service_tier || null,
    usage: { prompt_tokens: Math.max(1, Math.floor(length / 4)), completion_tokens: n * maximum },
    headers,
    body_bytes: length
  }
  const attack = request.get('x-attack') || ''
  seen.set(attack, [...(seen.get(attack) || []), call])
  return call
}

app.post('/v1/chat/completions', (request, response) => {
  const call = read(request)
  const usage = { ...call.usage, total_tokens: call.usage.prompt_tokens + call.usage.completion_tokens }
  const chat = { id: 'chatcmpl-1', created: 1, model: call.model }
  if (!call.stream) {
    const choices = [{ index: 0, message: { role: 'assistant', content: 'Yes.' }, finish_reason: 'stop' }]
    return response.json({ ...chat, object: 'chat.completion', choices, usage })
  }
  const events = [
    { choices: [{ index: 0, delta: { content: 'Yes.' }, finish_reason: null }] },
    { choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] }
  ]
  if (call.include_usage) events.push({ choices: [], usage })
  const lines = events.map(event => JSON.stringify({ ...chat, object: 'chat.completion.chunk', ...event }))
  response.type('text/event-stream')
  response.send([...lines, '[DONE]'].map(line => `data: ${line}\n\n`).join(''))
})
app.get('/seen/:attack', (request, response) => response.json(seen.get(request.params.attack) || []))

const server = app.listen(0, '127.0.0.1', () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`)
})
