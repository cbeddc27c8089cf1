/** Values by name that some wait for and others bring, in either order; each is brought once. */
export class Waiting<T> {
  private readonly values = new Map<string, T>();
  private readonly takers = new Map<string, ((value: T) => void)[]>();
  private readonly losers = new Set<(error: Error) => void>();
  private error: Error | undefined;

  give(name: string, value: T): void {
    this.values.set(name, value);
    for (const take of this.takers.get(name) ?? []) take(value);
    this.takers.delete(name);
  }

  /** Rejects once nothing is brought any more. */
  take(name: string): Promise<T> {
    if (this.values.has(name)) return Promise.resolve(this.values.get(name)!);
    if (this.error !== undefined) return Promise.reject(this.error);
    return new Promise((resolve, reject) => {
      const taken = (value: T) => {
        this.losers.delete(reject);
        resolve(value);
      };
      this.takers.set(name, [...(this.takers.get(name) ?? []), taken]);
      this.losers.add(reject);
    });
  }

  fail(error: Error): void {
    this.error ??= error;
    for (const lose of this.losers) lose(this.error);
    this.losers.clear();
    this.takers.clear();
  }
}
