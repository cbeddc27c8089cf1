/**
 * The body of a model request, from agent, tools and history. Pure: no clock, no ids, nothing read from anywhere else, so
 * that a recorded log gives the same bytes again and every request begins with the one before it, which is what caches hit.
 */
import type { Agent } from "../../../proto/gen/tendon/v1/agent_pb.js";
import type { Event } from "../../../proto/gen/tendon/v1/event_pb.js";
import { objectText, payloadOf, stringOf } from "../../event-payload.ts";
import type { CatalogueTool, ToolCatalogue } from "../../tool-catalogue.ts";
import { isBlank, jsonText, textBlock } from "./blocks.ts";
import { type CachePlan, cachePlan } from "./cache-plan.ts";
import { buildHistory, type History } from "./history.ts";

export interface ModelRequest {
  readonly model: string;
  /** The request's body: JSON text. */
  readonly body: string;
}

export interface PlanInput {
  readonly agent: Agent;
  readonly tools: ToolCatalogue;
  /** Events that matter to a model, oldest first. */
  readonly history: readonly Event[];
  /** For agents that name no model. */
  readonly defaultModel: string;
}

/** What requests of one session share, and the history that the next one is made of. */
export interface RequestParts extends PlanInput {
  readonly built: History;
}

const DEFAULT_MAX_TOKENS = 16_000;
const MIN_THINKING_TOKENS = 1_024;
/** Left for the answer itself beside the thinking. */
const MIN_ANSWER_TOKENS = 4_096;
const CACHE_MARK = `,"cache_control":{"type":"ephemeral"}}`;

export function modelOf(agent: Agent, defaultModel: string): string {
  return agent.spec?.model?.id || defaultModel;
}

export function requestParts(input: PlanInput): RequestParts {
  return { ...input, built: buildHistory(input.history, (event) => modelNameOf(event, input.tools)) };
}

/** `question` is asked after all that the history says, in a request that nothing will be added to. */
export function plan({ agent, tools, built, defaultModel }: RequestParts, question?: string): ModelRequest {
  const model = modelOf(agent, defaultModel);
  const system = agent.spec?.system ?? "";
  const marks = cachePlan(built, !isBlank(system), question !== undefined);
  const fields = [
    `"model":${JSON.stringify(model)}`,
    ...limitFields(agent),
    `"stream":true`,
    ...toolFields(tools, marks),
    ...systemFields(system),
    messagesField(built, marks, question),
  ];
  return { model, body: `{${fields.join(",")}}` };
}

/** A request for one text, which shares nothing with the session's others. */
export function planText({ agent, defaultModel }: RequestParts, question: string): ModelRequest {
  const model = modelOf(agent, defaultModel);
  const messages = `"messages":[{"role":"user","content":[${textBlock(question)}]}]`;
  const fields = [`"model":${JSON.stringify(model)}`, ...limitFields(agent), `"stream":true`, messages];
  return { model, body: `{${fields.join(",")}}` };
}

/** Bytes of tools and system prompt. */
export function fixedWeight({ agent, tools }: PlanInput): number {
  const system = agent.spec?.system ?? "";
  return Buffer.byteLength(system) + tools.offered.reduce((sum, tool) => sum + toolText(tool).length, 0);
}

/** Most tokens of an answer. */
export function maxAnswerTokens(agent: Agent): number {
  const { maxOutputTokens } = agent.spec?.model ?? {};
  const wanted = maxOutputTokens || DEFAULT_MAX_TOKENS;
  const budget = thinkingBudget(agent);
  return budget > 0 ? Math.max(wanted, budget + MIN_ANSWER_TOKENS) : wanted;
}

function thinkingBudget(agent: Agent): number {
  const { thinkingBudgetTokens } = agent.spec?.model ?? {};
  return thinkingBudgetTokens ? Math.max(MIN_THINKING_TOKENS, thinkingBudgetTokens) : 0;
}

function limitFields(agent: Agent): string[] {
  const { effort } = agent.spec?.model ?? {};
  const budget = thinkingBudget(agent);
  const fields = [`"max_tokens":${maxAnswerTokens(agent)}`];
  if (budget > 0) fields.push(`"thinking":{"type":"enabled","budget_tokens":${budget}}`);
  if (effort) fields.push(`"output_config":{"effort":${JSON.stringify(effort)}}`);
  return fields;
}

function toolFields({ offered }: ToolCatalogue, { marksTools }: CachePlan): string[] {
  if (offered.length === 0) return [];
  const tools = offered.map(toolText);
  if (marksTools) tools.push(marked(tools.pop()!));
  return [`"tools":[${tools.join(",")}]`];
}

function toolText({ modelName, description, inputSchema }: CatalogueTool): string {
  const schema = objectText(inputSchema);
  const usable = schema === undefined || schema === "{}" ? `{"type":"object"}` : schema;
  const about = isBlank(description) ? "" : `,"description":${jsonText(description)}`;
  return `{"name":${JSON.stringify(modelName)}${about},"input_schema":${usable}}`;
}

function systemFields(system: string): string[] {
  return isBlank(system) ? [] : [`"system":[${marked(textBlock(system))}]`];
}

function messagesField({ messages }: History, { places }: CachePlan, question: string | undefined): string {
  const texts = messages.map((message) => {
    const content = message.blocks.map((block, b) => {
      const isMarked = places.some((place) => place.message === message && place.block === b);
      return isMarked && isMarkable(block) ? marked(block) : block;
    });
    return { role: message.role, content };
  });
  if (question !== undefined) {
    const last = texts.at(-1);
    if (last?.role === "user") last.content.push(textBlock(question));
    else texts.push({ role: "user", content: [textBlock(question)] });
  }
  const joined = texts.map(({ role, content }) => `{"role":"${role}","content":[${content.join(",")}]}`);
  return `"messages":[${joined.join(",")}]`;
}

function isMarkable(block: string): boolean {
  return !/^\{"type":"(redacted_)?thinking"/.test(block);
}

function marked(object: string): string {
  return object.slice(0, -1) + CACHE_MARK;
}

/** The name under which the model knows the tool of an event that does not say so itself. */
function modelNameOf(event: Event, tools: ToolCatalogue): string {
  const { name, hand } = payloadOf(event);
  const slot = stringOf(hand);
  const tool = tools.offered.find((offered) => offered.name === name && offered.slot === slot);
  const plain = slot === "" ? stringOf(name) : `${slot}__${stringOf(name)}`;
  return tool?.modelName ?? (plain.replace(/[^a-zA-Z0-9_-]/g, "_").slice(0, 128) || "unknown");
}
