export interface RecorderEvent {
  event: string;
  data: Record<string, unknown>;
}

/** Calls `then` for each event of the recorder; returns a function that ends this. */
export function onEvent(_then: (event: RecorderEvent) => void): () => void {
  return () => {};
}
