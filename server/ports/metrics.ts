/** What the areas measure; `GET /metrics` shows it. Names are `tendon_<what>_<unit>`; values are never secret and never of one workspace. */
export interface Metrics {
  /** Read whenever the metrics are shown. */
  gauge(name: string, help: string, read: () => number): void;
  /** Returns the function that counts, by one unless told otherwise. */
  counter(name: string, help: string): (by?: number) => void;
}
