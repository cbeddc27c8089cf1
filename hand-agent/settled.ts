/** Lets several promises come to their ends before the failure of one counts. */

/** Resolves when the promise has an end, with a function that gives its value or throws its error. */
export function settled<T>(promise: Promise<T>): Promise<() => T> {
  return promise.then(
    (value) => () => value,
    (error) => () => {
      throw error;
    },
  );
}
