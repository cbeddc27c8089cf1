/** Checks every request against the rules in the protos. */
import type { Message } from "@bufbuild/protobuf";
import { pathToString } from "@bufbuild/protobuf/reflect";
import { createValidator } from "@bufbuild/protovalidate";
import { TendonError } from "../errors.ts";
import type { RpcContext } from "./context.ts";
import type { RpcInterceptor } from "./pipeline.ts";
import { tooMany, type Unfit, unfitTime } from "./unfit.ts";

/** Refuses with INVALID_FIELD what breaks a rule; `field` in the metadata is the path of the first such field. */
export function validationInterceptor(): RpcInterceptor {
  // Rules are compiled once for each message type, at its first use.
  const validator = createValidator();
  return {
    onRequest(context: RpcContext, request: Message): void {
      const { input } = context.method;
      refuse(tooMany(input, request) ?? unfitTime(input, request));
      const result = validator.validate(input, request);
      if (result.kind === "valid") return;
      if (result.kind === "error") throw result.error;
      const [first, ...more] = result.violations.map(
        ({ field, message }) => [pathToString(field), message] as const,
      );
      if (first === undefined) return;
      const [path, problem] = first;
      const rest =
        more.length === 0
          ? ""
          : `; also ${[...new Set(more.map(([other]) => other))].slice(0, 8).join(", ")}`;
      throw new TendonError("INVALID_FIELD", `${path === "" ? "request" : path}: ${problem}${rest}`, {
        field: path,
      });
    },
  };
}

/** Throws INVALID_FIELD when there is something to refuse. */
export function refuse(unfit: Unfit | undefined): void {
  if (unfit === undefined) return;
  const { path, problem } = unfit;
  throw new TendonError("INVALID_FIELD", `${path}: ${problem}`, { field: path });
}
