/** What a command prints: text for people, or with `--json` one object, or one object a line for streams. */
import type { DescMessage, MessageShape } from "@bufbuild/protobuf";
import { toJson } from "@bufbuild/protobuf";

export interface Output {
  readonly json: boolean;
  /** Whether standard output is a terminal that may be sent control sequences, such as colours. */
  readonly isRich: boolean;
  /** A message of the contract, in its JSON form with the names of the protos; `asText` is for people. */
  message<S extends DescMessage>(schema: S, message: MessageShape<S>, asText: () => string): void;
  /** Anything else. */
  value(value: unknown, asText: () => string): void;
  /** Text for people alone, as it is. */
  write(text: string): void;
  /** Notes that are no result; on stderr. */
  note(text: string): void;
}

/** `isPlain`: somebody wants no control sequences. */
export function createOutput(
  { json, isPlain }: { json: boolean; isPlain: boolean },
  stdout = process.stdout,
  stderr = process.stderr,
): Output {
  const line = (text: string) => {
    if (text !== "") stdout.write(`${text}\n`);
  };
  return {
    json,
    isRich: stdout.isTTY === true && !isPlain && !json,
    message: (schema, message, asText) =>
      line(json ? JSON.stringify(messageJson(schema, message)) : asText()),
    value: (value, asText) => line(json ? JSON.stringify(value) : asText()),
    write: (text) => {
      if (!json) stdout.write(text);
    },
    note: (text) => stderr.write(`${text}\n`),
  };
}

/** Fields that hold their default are there too, so that scripts need not guess. */
export function messageJson<S extends DescMessage>(schema: S, message: MessageShape<S>): unknown {
  return toJson(schema, message, { useProtoFieldName: true, alwaysEmitImplicit: true });
}
