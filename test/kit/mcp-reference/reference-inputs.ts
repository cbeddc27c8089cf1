/** Tools that ask their client for something: on the older wire beside the call, on the newer one by an answer that wants input. */
import {
  acceptedContent,
  type ClientCapabilities,
  fromJsonSchema,
  inputRequired,
  type McpServer,
  type RequestStateCodec,
  type ServerContext,
} from "@modelcontextprotocol/server";
import { strings } from "./reference-content.ts";

type Inputs = NonNullable<Parameters<typeof inputRequired>[0]["inputRequests"]>;
type Elicited = Parameters<ServerContext["mcpReq"]["elicitInput"]>[0];
type Form = Extract<Elicited, { requestedSchema: unknown }>["requestedSchema"];

const CAPABILITIES = "io.modelcontextprotocol/clientCapabilities";
const said = (text: string) => ({ content: [{ type: "text" as const, text }] });
const asked = (text: string) => [{ role: "user" as const, content: { type: "text" as const, text } }];

/**
 * Requests of the server's own, which the wire of 2025-11-25 has. They go on the stream of the call: its client opens the other
 * one when it likes, and what is sent before that is not waited for.
 */
export function addAskingTools(server: McpServer): void {
  const sampling = {
    description: "Samples",
    inputSchema: fromJsonSchema<{ prompt: string }>(strings("prompt")),
  };
  server.registerTool("test_sampling", sampling, async ({ prompt }, { mcpReq }) => {
    const params = { messages: asked(prompt), maxTokens: 100 };
    const { content } = await mcpReq.send({ method: "sampling/createMessage", params });
    return said(`LLM response: ${(content as { text?: string }).text ?? ""}`);
  });
  const elicits = (name: string, form: Form) =>
    server.registerTool(name, { description: `Elicits for ${name}` }, async ({ mcpReq }) => {
      const params = { mode: "form", message: "Please fill in", requestedSchema: form };
      const { action, content } = await mcpReq.send({ method: "elicitation/create", params });
      return said(`Elicitation completed: action=${action}, content=${JSON.stringify(content ?? {})}`);
    });
  const message = {
    description: "Elicits",
    inputSchema: fromJsonSchema<{ message: string }>(strings("message")),
  };
  server.registerTool("test_elicitation", message, async (input, { mcpReq }) => {
    const params = {
      mode: "form",
      message: input.message,
      requestedSchema: strings("username", "email"),
    };
    const { action, content } = await mcpReq.send({ method: "elicitation/create", params });
    return said(`User response: action=${action}, content=${JSON.stringify(content ?? {})}`);
  });
  elicits("test_elicitation_sep1034_defaults", DEFAULTS);
  elicits("test_elicitation_sep1330_enums", ENUMS);
}

const DEFAULTS: Form = {
  type: "object",
  properties: {
    name: { type: "string", default: "John Doe" },
    age: { type: "integer", default: 30 },
    score: { type: "number", default: 95.5 },
    status: { type: "string", enum: ["active", "inactive", "pending"], default: "active" },
    verified: { type: "boolean", default: true },
  },
};

const options = (word: string) =>
  [1, 2, 3].map((n) => ({ const: `value${n}`, title: `${["First", "Second", "Third"][n - 1]} ${word}` }));
const plain = ["option1", "option2", "option3"];
const ENUMS: Form = {
  type: "object",
  properties: {
    untitledSingle: { type: "string", enum: plain },
    titledSingle: { type: "string", oneOf: options("Option") },
    legacyEnum: {
      type: "string",
      enum: ["opt1", "opt2", "opt3"],
      enumNames: ["Option One", "Option Two", "Option Three"],
    },
    untitledMulti: { type: "array", items: { type: "string", enum: plain } },
    titledMulti: { type: "array", items: { anyOf: options("Choice") } },
  },
};

const elicit = (message: string, form: Form) => inputRequired.elicit({ message, requestedSchema: form });
const sample = (words: string, maxTokens: number) =>
  inputRequired.createMessage({ messages: asked(words), maxTokens });
const NAME = elicit("What is your name?", strings("name"));

/** Answers that want input, which the wire of 2026-07-28 has instead. `states` seals what goes through the client. */
export function addInputTools(server: McpServer, states: RequestStateCodec): void {
  /** One round: wants `requests` until all of them are answered. */
  const oneRound = (suffix: string, requests: (ctx: ServerContext) => Inputs, hasState = false) => {
    const name = `test_input_required_result_${suffix}`;
    server.registerTool(name, { description: `Wants input for ${suffix}` }, async (ctx) => {
      const inputRequests = requests(ctx);
      const { inputResponses = {} } = ctx.mcpReq;
      const isAnswered = Object.keys(inputRequests).every((key) => Object.hasOwn(inputResponses, key));
      if (isAnswered) return said(`state-ok ${JSON.stringify(inputResponses)}`);
      return inputRequired({
        inputRequests,
        ...(hasState && { requestState: await states.mint({ round: 1 }) }),
      });
    });
  };
  const confirm = elicit("Please confirm", {
    type: "object",
    properties: { ok: { type: "boolean" } },
    required: ["ok"],
  });
  const capital = sample("What is the capital of France?", 100);
  const roots = inputRequired.listRoots();
  server.registerTool("test_input_required_result_elicitation", { description: "Wants a name" }, (ctx) => {
    const name = acceptedContent<{ name?: unknown }>(ctx.mcpReq.inputResponses, "user_name")?.name;
    return typeof name === "string"
      ? said(`Hello, ${name}!`)
      : inputRequired({ inputRequests: { user_name: NAME } });
  });
  oneRound("sampling", () => ({ capital_question: capital }));
  oneRound("list_roots", () => ({ client_roots: roots }));
  oneRound("request_state", () => ({ confirm }), true);
  oneRound("tampered_state", () => ({ confirm }), true);
  const greeting = sample("Generate a greeting", 50);
  oneRound("multiple_inputs", () => ({ user_name: NAME, greeting, client_roots: roots }), true);
  oneRound("capabilities", ({ mcpReq }) => {
    const told = mcpReq.envelope as { [CAPABILITIES]?: ClientCapabilities } | undefined;
    const may = told?.[CAPABILITIES] ?? {};
    return { ...(may.elicitation && { user_name: NAME }), ...(may.sampling && { capital }) };
  });
  addRounds(server, states);
}

/** Three rounds of a tool, two of a prompt, one of a tool that streams before. */
function addRounds(server: McpServer, states: RequestStateCodec): void {
  const rounds = "test_input_required_result_multi_round";
  server.registerTool(rounds, { description: "Three rounds" }, async ({ mcpReq }) => {
    const { inputResponses, requestState } = mcpReq;
    const round = requestState<{ round: number }>()?.round ?? 0;
    if (round === 2 && inputResponses?.step2 !== undefined) return said(JSON.stringify(inputResponses));
    const isFirst = inputResponses?.step1 === undefined;
    const step1 = elicit("Step 1: What is your name?", strings("name"));
    const step2 = elicit("Step 2: What is your favorite color?", strings("color"));
    return inputRequired({
      inputRequests: isFirst ? { step1 } : { step2 },
      requestState: await states.mint({ round: isFirst ? 1 : 2 }),
    });
  });
  const context = elicit("What context should the prompt use?", strings("context"));
  server.registerPrompt(
    "test_input_required_result_prompt",
    { description: "Wants a context" },
    ({ mcpReq }) => {
      const given = acceptedContent<{ context: string }>(mcpReq.inputResponses, "user_context")?.context;
      if (given === undefined) return inputRequired({ inputRequests: { user_context: context } });
      return { messages: [{ role: "user", content: { type: "text", text: given } }] };
    },
  );
  server.registerTool("test_streaming_elicitation", { description: "Tells, then wants" }, async (ctx) => {
    await ctx.mcpReq.notify({
      method: "notifications/progress",
      params: { progressToken: "stream", progress: 1 },
    });
    const isAnswered = ctx.mcpReq.inputResponses?.user_name !== undefined;
    return isAnswered ? said("thanks") : inputRequired({ inputRequests: { user_name: NAME } });
  });
  server.registerTool("test_missing_capability", { description: "Samples in any case" }, ({ mcpReq }) => {
    if (mcpReq.inputResponses?.capital !== undefined) return said("sampled");
    return inputRequired({ inputRequests: { capital: sample("What is the capital of France?", 100) } });
  });
}
