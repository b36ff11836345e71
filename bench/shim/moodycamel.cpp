// moodycamel's ReaderWriterQueue (SPSC) and ConcurrentQueue (MPMC).
//
// Both allocate all their memory at the start: try_enqueue and try_dequeue never allocate. Each
// thread has a token of ConcurrentQueue, as the author recommends.

#include <vector>

#include <concurrentqueue/concurrentqueue.h>
#include <readerwriterqueue/readerwriterqueue.h>

#include "adapter.h"

namespace {

template <std::uint32_t Bytes>
struct ReaderWriter {
	using T = Item<Bytes>;
	using Queue = moodycamel::ReaderWriterQueue<T>;

	static void *create(std::uint32_t capacity, std::uint32_t, std::uint32_t)
	{
		return make<Queue>(std::size_t(capacity));
	}

	static bool try_send(void *queue, std::uint32_t, const void *item)
	{
		return static_cast<Queue *>(queue)->try_enqueue(*static_cast<const T *>(item));
	}

	static bool try_receive(void *queue, std::uint32_t, void *item)
	{
		return static_cast<Queue *>(queue)->try_dequeue(*static_cast<T *>(item));
	}

	static constexpr queue_functions functions{create, destroy<Queue>, try_send, try_receive};
};

// A thread's token, on separate cache lines.
template <class T>
struct alignas(128) Own {
	T token;

	template <class Queue>
	explicit Own(Queue &queue) : token(queue)
	{
	}
};

template <std::uint32_t Bytes>
struct Concurrent {
	using T = Item<Bytes>;

	// Each producer can fill the whole capacity. No producer enqueues without a token.
	struct Queue {
		moodycamel::ConcurrentQueue<T> queue;
		std::vector<Own<moodycamel::ProducerToken>> senders;
		std::vector<Own<moodycamel::ConsumerToken>> receivers;

		Queue(std::size_t capacity, std::size_t producers, std::size_t consumers) : queue(capacity, producers, std::size_t(0))
		{
			senders.reserve(producers);
			receivers.reserve(consumers);
			while (senders.size() < producers)
				senders.emplace_back(queue);
			while (receivers.size() < consumers)
				receivers.emplace_back(queue);
		}
	};

	static void *create(std::uint32_t capacity, std::uint32_t producers, std::uint32_t consumers)
	{
		return make<Queue>(std::size_t(capacity), std::size_t(producers), std::size_t(consumers));
	}

	static bool try_send(void *queue, std::uint32_t producer, const void *item)
	{
		Queue &all = *static_cast<Queue *>(queue);
		return all.queue.try_enqueue(all.senders[producer].token, *static_cast<const T *>(item));
	}

	static bool try_receive(void *queue, std::uint32_t consumer, void *item)
	{
		Queue &all = *static_cast<Queue *>(queue);
		return all.queue.try_dequeue(all.receivers[consumer].token, *static_cast<T *>(item));
	}

	static constexpr queue_functions functions{create, destroy<Queue>, try_send, try_receive};
};

} // namespace

const queue_functions *readerwriterqueue_functions(std::uint32_t item_bytes)
{
	return functions<ReaderWriter>(item_bytes);
}

const queue_functions *concurrentqueue_functions(std::uint32_t item_bytes)
{
	return functions<Concurrent>(item_bytes);
}
