/** The error that a call is expected to fail with. */
import { inspect } from "node:util";
import { isTendonError, type TendonError } from "../../kit/errors.ts";

export async function failure(promise: PromiseLike<unknown>): Promise<TendonError> {
  const outcome: unknown = await promise.then(
    (value) => ({ answered: value }),
    (thrown: unknown) => thrown,
  );
  if (!isTendonError(outcome)) throw new Error(`expected a TendonError, got ${inspect(outcome)}`);
  return outcome;
}
