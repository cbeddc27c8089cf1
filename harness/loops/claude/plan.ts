/**
 * The next model request, from agent, tools and history. Pure: no clock, no ids, nothing read from anywhere else, so that a
 * recorded log gives the same bytes again and every request begins with the one before it, which is what caches hit.
 */
import type { Agent } from "../../../proto/gen/tendon/v1/agent_pb.js";
import type { Event } from "../../../proto/gen/tendon/v1/event_pb.js";
import { objectText, payloadOf, stringOf } from "../../event-payload.ts";
import type { CatalogueTool, ToolCatalogue } from "../../tool-catalogue.ts";
import { isBlank, jsonText, textBlock } from "./blocks.ts";
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

const DEFAULT_MAX_TOKENS = 16_000;
const MIN_THINKING_TOKENS = 1_024;
/** Left for the answer itself beside the thinking. */
const MIN_ANSWER_TOKENS = 4_096;
const CACHE_MARK = `,"cache_control":{"type":"ephemeral"}}`;

export function modelOf(agent: Agent, defaultModel: string): string {
  return agent.spec?.model?.id || defaultModel;
}

export function plan({ agent, tools, history, defaultModel }: PlanInput): ModelRequest {
  const model = modelOf(agent, defaultModel);
  const fields = [
    `"model":${JSON.stringify(model)}`,
    ...limitFields(agent),
    `"stream":true`,
    ...toolFields(tools),
    ...systemFields(agent),
    messagesField(buildHistory(history, (event) => modelNameOf(event, tools))),
  ];
  return { model, body: `{${fields.join(",")}}` };
}

function limitFields(agent: Agent): string[] {
  const { maxOutputTokens, thinkingBudgetTokens, effort } = agent.spec?.model ?? {};
  const wanted = maxOutputTokens || DEFAULT_MAX_TOKENS;
  const budget = thinkingBudgetTokens ? Math.max(MIN_THINKING_TOKENS, thinkingBudgetTokens) : 0;
  const maxTokens = budget > 0 ? Math.max(wanted, budget + MIN_ANSWER_TOKENS) : wanted;
  const fields = [`"max_tokens":${maxTokens}`];
  if (budget > 0) fields.push(`"thinking":{"type":"enabled","budget_tokens":${budget}}`);
  if (effort) fields.push(`"output_config":{"effort":${JSON.stringify(effort)}}`);
  return fields;
}

/** A mark behind the last tool, one behind the system prompt: both stay for the session's life. */
function toolFields({ offered }: ToolCatalogue): string[] {
  if (offered.length === 0) return [];
  const tools = offered.map(toolText);
  tools.push(marked(tools.pop()!));
  return [`"tools":[${tools.join(",")}]`];
}

function toolText({ modelName, description, inputSchema }: CatalogueTool): string {
  const schema = objectText(inputSchema);
  const usable = schema === undefined || schema === "{}" ? `{"type":"object"}` : schema;
  const about = isBlank(description) ? "" : `,"description":${jsonText(description)}`;
  return `{"name":${JSON.stringify(modelName)}${about},"input_schema":${usable}}`;
}

function systemFields(agent: Agent): string[] {
  const system = agent.spec?.system ?? "";
  return isBlank(system) ? [] : [`"system":[${marked(textBlock(system))}]`];
}

/** One mark at the end, which the next request reads, and one where the request before ended, which this one reads. */
function messagesField({ messages, previousEnd }: History): string {
  const last = { message: messages.length - 1, block: (messages.at(-1)?.blocks.length ?? 0) - 1 };
  const texts = messages.map(({ role, blocks }, m) => {
    const content = blocks.map((block, b) => {
      const isMarked = [last, previousEnd].some((end) => end?.message === m && end.block === b);
      return isMarked && isMarkable(block) ? marked(block) : block;
    });
    return `{"role":"${role}","content":[${content.join(",")}]}`;
  });
  return `"messages":[${texts.join(",")}]`;
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
