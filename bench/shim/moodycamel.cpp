// moodycamel's ReaderWriterQueue (one producer, one consumer) and ConcurrentQueue (many of each).
//
// Both get all their memory at the start and are used through the calls that never take more: try_enqueue, try_dequeue.
// ConcurrentQueue is used with a token for each thread, as its author recommends.

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

	// The queue knows no ends: it stands for both itself.
	static void *open(void *queue)
	{
		return queue;
	}

	static void close(void *)
	{
	}

	static bool try_send(void *queue, void *, const void *item)
	{
		return static_cast<Queue *>(queue)->try_enqueue(*static_cast<const T *>(item));
	}

	static bool try_receive(void *queue, void *, void *item)
	{
		return static_cast<Queue *>(queue)->try_dequeue(*static_cast<T *>(item));
	}

	static constexpr queue_functions functions{create, destroy<Queue>, open, close, open, close, try_send, try_receive};
};

template <std::uint32_t Bytes>
struct Concurrent {
	using T = Item<Bytes>;
	using Queue = moodycamel::ConcurrentQueue<T>;

	// Each producer can have the whole capacity in flight; none enqueues without a token.
	static void *create(std::uint32_t capacity, std::uint32_t producers, std::uint32_t)
	{
		return make<Queue>(std::size_t(capacity), std::size_t(producers), std::size_t(0));
	}

	static void *sender_open(void *queue)
	{
		return make<moodycamel::ProducerToken>(*static_cast<Queue *>(queue));
	}

	static void *receiver_open(void *queue)
	{
		return make<moodycamel::ConsumerToken>(*static_cast<Queue *>(queue));
	}

	static bool try_send(void *queue, void *sender, const void *item)
	{
		return static_cast<Queue *>(queue)->try_enqueue(*static_cast<moodycamel::ProducerToken *>(sender),
								*static_cast<const T *>(item));
	}

	static bool try_receive(void *queue, void *receiver, void *item)
	{
		return static_cast<Queue *>(queue)->try_dequeue(*static_cast<moodycamel::ConsumerToken *>(receiver),
								*static_cast<T *>(item));
	}

	static constexpr queue_functions functions{create,
						   destroy<Queue>,
						   sender_open,
						   destroy<moodycamel::ProducerToken>,
						   receiver_open,
						   destroy<moodycamel::ConsumerToken>,
						   try_send,
						   try_receive};
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
