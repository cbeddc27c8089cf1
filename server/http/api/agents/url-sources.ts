/**
 * Which sources may show the URLs that `web_fetch` reads, in the words of existing clients (pure): a word, or an object with a
 * type. Throws INVALID_FIELD with the path in their words.
 */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { invalidField } from "../../../../kit/errors.ts";
import {
  UrlSourceRule,
  type UrlSources,
  type UrlSourcesSchema,
  type UrlSourceTools,
} from "../../../../proto/gen/tendon/v1/agent_pb.js";
import { type Fields, fieldsOf } from "../fields.ts";

type Init<M> = Extract<M, { $typeName?: never }>;
type SourcesInit = Init<MessageInitShape<typeof UrlSourcesSchema>>;

const RULES = {
  all: UrlSourceRule.ALL,
  none: UrlSourceRule.NONE,
  only: UrlSourceRule.ONLY,
  except: UrlSourceRule.EXCEPT,
} as const;
const PLAIN = ["all", "none"] as const;
const FILTERS = ["all", "none", "only", "except"] as const;
const NAMES = ["client_tool_results", "server_tool_results", "user_input"];

export function urlSourcesOf(config: Fields): { urlSources?: SourcesInit } {
  const sources = config.object("url_sources");
  if (sources === undefined) return {};
  sources.only(...NAMES);
  const [client, server] = NAMES.map((name) => toolsOf(sources, name));
  const input = ruleOf(sources, "user_input", PLAIN);
  return {
    urlSources: {
      ...(client && { clientToolResults: client }),
      ...(server && { serverToolResults: server }),
      ...(input && { userInput: RULES[input.word] }),
    },
  };
}

function toolsOf(sources: Fields, name: string): { rule: UrlSourceRule; names: string[] } | undefined {
  const said = ruleOf(sources, name, FILTERS);
  if (said === undefined) return undefined;
  const { word, fields } = said;
  if (word === "all" || word === "none") return { rule: RULES[word], names: [] };
  const tools = fields?.objects("tools") ?? [];
  if (tools.length < 1 || tools.length > 128)
    throw invalidField(`${sources.at(name)}.tools`, "must hold 1 to 128 tools");
  const names = tools.map((tool) => {
    tool.word("type", ["tool_reference"]);
    return tool.requiredText("name");
  });
  return { rule: RULES[word], names };
}

/** Undefined when it is not said; null counts as that too. */
function ruleOf<W extends keyof typeof RULES>(
  sources: Fields,
  name: string,
  words: readonly W[],
): { readonly word: W; readonly fields: Fields | undefined } | undefined {
  const said = sources.value[name];
  if (said === undefined || said === null) return undefined;
  if (typeof said === "string") {
    // Lists need an object.
    const word = sources.word(
      name,
      words.filter((known) => known === "all" || known === "none"),
    );
    return word && { word, fields: undefined };
  }
  const fields = fieldsOf(said, sources.at(name));
  const word = fields.word("type", words);
  if (word === undefined) throw invalidField(fields.at("type"), "is required");
  fields.only("type", ...(word === "only" || word === "except" ? ["tools"] : []));
  return { word, fields };
}

/** Always in the object form; null for what is not set. */
export function urlSourcesJson(sources: UrlSources | undefined) {
  if (sources === undefined) return { url_sources: null };
  const { clientToolResults, serverToolResults, userInput } = sources;
  return {
    url_sources: {
      client_tool_results: toolsJson(clientToolResults),
      server_tool_results: toolsJson(serverToolResults),
      user_input: userInput === UrlSourceRule.UNSPECIFIED ? null : { type: wordOf(userInput) },
    },
  };
}

function toolsJson(tools: UrlSourceTools | undefined) {
  if (tools === undefined) return null;
  const type = wordOf(tools.rule);
  if (type !== "only" && type !== "except") return { type };
  return { type, tools: tools.names.map((name) => ({ type: "tool_reference", name })) };
}

function wordOf(rule: UrlSourceRule): keyof typeof RULES {
  return FILTERS.find((word) => RULES[word] === rule) ?? "all";
}
