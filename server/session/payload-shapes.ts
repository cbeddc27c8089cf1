/**
 * Shapes of what clients send, as far as a brain relies on them (pure). Types that are not listed may hold any object;
 * fields that are not listed are kept and ignored.
 */
import { invalidField } from "../../kit/errors.ts";

type Fields = Record<string, unknown>;
type Check = (value: unknown, path: string) => void;

export const MAX_RUBRIC_CHARS = 262_144;
const MAX_DESCRIPTION_CHARS = 65_536;
const MAX_ITERATIONS = 20;
const MAX_SYSTEM_BLOCKS = 1_000;

/** Throws INVALID_FIELD naming the path of the first field that does not fit. */
export function checkPayloadShape(type: string, payload: Fields, path: string): void {
  SHAPES[type]?.(payload, path);
}

const SHAPES: Readonly<Record<string, (payload: Fields, path: string) => void>> = {
  "user.message": (payload, path) => {
    contentList(MESSAGE_BLOCKS)(payload.content, `${path}.content`);
  },
  "system.message": (payload, path) => {
    contentList({ text: textBlock })(payload.content, `${path}.content`);
    if ((payload.content as unknown[]).length > MAX_SYSTEM_BLOCKS)
      throw invalidField(`${path}.content`, `must have at most ${MAX_SYSTEM_BLOCKS} blocks`);
  },
  "user.interrupt": (payload, path) => {
    optional(nonEmptyText)(payload.session_thread_id, `${path}.session_thread_id`);
  },
  "user.tool_confirmation": (payload, path) => {
    callId(payload.tool_use_id, `${path}.tool_use_id`);
    oneOf(["allow", "deny"])(payload.result, `${path}.result`);
    optional(anyText)(payload.deny_message, `${path}.deny_message`);
    if (typeof payload.deny_message === "string" && payload.result !== "deny") {
      throw invalidField(`${path}.deny_message`, 'goes only with the result "deny"');
    }
  },
  "user.custom_tool_result": (payload, path) =>
    toolResult(payload, path, "custom_tool_use_id", RESULT_BLOCKS),
  "user.tool_result": (payload, path) => toolResult(payload, path, "tool_use_id", RESULT_BLOCKS),
  "user.define_outcome": (payload, path) => {
    boundedText(MAX_DESCRIPTION_CHARS)(payload.description, `${path}.description`);
    tagged({ text: rubricText, file: fileSource })(payload.rubric, `${path}.rubric`);
    optional(iterations)(payload.max_iterations, `${path}.max_iterations`);
  },
};

/** The platform's own types that clients append. */
export const CLIENT_TYPES: ReadonlySet<string> = new Set(Object.keys(SHAPES));

function toolResult(payload: Fields, path: string, idField: string, cases: Cases): void {
  callId(payload[idField], `${path}.${idField}`);
  optional(blocks(cases))(payload.content, `${path}.content`);
  optional(boolean)(payload.is_error, `${path}.is_error`);
}

const anyText: Check = (value, path) => {
  if (typeof value !== "string") throw invalidField(path, problem(value, "a string"));
};

const nonEmptyText: Check = (value, path) => {
  anyText(value, path);
  if (value === "") throw invalidField(path, "must not be empty");
};

/** Ids go into columns and messages: short, printable. */
const callId: Check = (value, path) => {
  nonEmptyText(value, path);
  if (!/^[\x21-\x7e]{1,128}$/.test(value as string)) throw invalidField(path, "is no id of a tool call");
};

const boolean: Check = (value, path) => {
  if (typeof value !== "boolean") throw invalidField(path, problem(value, "true or false"));
};

const iterations: Check = (value, path) => {
  if (!Number.isInteger(value) || (value as number) < 1 || (value as number) > MAX_ITERATIONS) {
    throw invalidField(path, `must be a whole number from 1 to ${MAX_ITERATIONS}`);
  }
};

function boundedText(maxChars: number): Check {
  return (value, path) => {
    nonEmptyText(value, path);
    if ((value as string).length > maxChars) throw invalidField(path, `has more than ${maxChars} characters`);
  };
}

function oneOf(values: readonly string[]): Check {
  return (value, path) => {
    if (!values.includes(value as string)) {
      throw invalidField(path, problem(value, values.map((one) => `"${one}"`).join(" or ")));
    }
  };
}

/** Absent and null are both "not said". */
function optional(check: Check): Check {
  return (value, path) => {
    if (value !== undefined && value !== null) check(value, path);
  };
}

function fields(value: unknown, path: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw invalidField(path, problem(value, "an object"));
  }
  return value as Fields;
}

type Cases = Readonly<Record<string, (value: Fields, path: string) => void>>;

/** An object whose `type` names one of the cases. */
function tagged(cases: Cases): Check {
  return (value, path) => {
    const object = fields(value, path);
    oneOf(Object.keys(cases))(object.type, `${path}.type`);
    cases[object.type as string]?.(object, path);
  };
}

function blocks(cases: Cases): Check {
  return (value, path) => {
    if (!Array.isArray(value)) throw invalidField(path, problem(value, "a list of content blocks"));
    for (const [index, block] of value.entries()) tagged(cases)(block, `${path}[${index}]`);
  };
}

function contentList(cases: Cases): Check {
  return (value, path) => {
    blocks(cases)(value, path);
    if ((value as unknown[]).length === 0) throw invalidField(path, "must have at least one block");
  };
}

const textBlock = (block: Fields, path: string) => nonEmptyText(block.text, `${path}.text`);
const rubricText = (rubric: Fields, path: string) =>
  boundedText(MAX_RUBRIC_CHARS)(rubric.content, `${path}.content`);
const fileSource = (source: Fields, path: string) => nonEmptyText(source.file_id, `${path}.file_id`);
const urlSource = (source: Fields, path: string) => nonEmptyText(source.url, `${path}.url`);
const plainSource = (source: Fields, path: string) => {
  oneOf(["text/plain"])(source.media_type, `${path}.media_type`);
  nonEmptyText(source.data, `${path}.data`);
};
const base64Source = (source: Fields, path: string) => {
  nonEmptyText(source.media_type, `${path}.media_type`);
  nonEmptyText(source.data, `${path}.data`);
  if (!/^[A-Za-z0-9+/]+={0,2}$/.test(source.data as string))
    throw invalidField(`${path}.data`, "is not base64");
};

const imageBlock = (block: Fields, path: string) =>
  tagged({ base64: base64Source, url: urlSource, file: fileSource })(block.source, `${path}.source`);
const documentBlock = (block: Fields, path: string) => {
  const sources = { base64: base64Source, text: plainSource, url: urlSource, file: fileSource };
  tagged(sources)(block.source, `${path}.source`);
  optional(anyText)(block.title, `${path}.title`);
  optional(anyText)(block.context, `${path}.context`);
};
const searchResultBlock = (block: Fields, path: string) => {
  nonEmptyText(block.source, `${path}.source`);
  nonEmptyText(block.title, `${path}.title`);
  contentList({ text: textBlock })(block.content, `${path}.content`);
};

const MESSAGE_BLOCKS: Cases = {
  text: textBlock,
  image: imageBlock,
  document: documentBlock,
};
const RESULT_BLOCKS: Cases = {
  text: textBlock,
  image: imageBlock,
  document: documentBlock,
  search_result: searchResultBlock,
};

function problem(value: unknown, wanted: string): string {
  return value === undefined ? `is missing; it must be ${wanted}` : `must be ${wanted}`;
}
