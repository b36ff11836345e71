// folly's ProducerConsumerQueue (SPSC) and MPMCQueue.
//
// Both allocate all their memory at the start, and ignore the numbers of producers and consumers.

#include <folly/MPMCQueue.h>
#include <folly/ProducerConsumerQueue.h>

#include "adapter.h"

namespace {

template <std::uint32_t Bytes>
struct Pcq {
	using T = Item<Bytes>;
	using Queue = folly::ProducerConsumerQueue<T>;

	// One slot stays empty, to tell a full queue from an empty one.
	static void *create(std::uint32_t capacity, std::uint32_t, std::uint32_t)
	{
		return make<Queue>(capacity + 1);
	}

	static bool try_send(void *queue, std::uint32_t, const void *item)
	{
		return static_cast<Queue *>(queue)->write(*static_cast<const T *>(item));
	}

	static bool try_receive(void *queue, std::uint32_t, void *item)
	{
		return static_cast<Queue *>(queue)->read(*static_cast<T *>(item));
	}

	static constexpr queue_functions functions{create, destroy<Queue>, try_send, try_receive};
};

template <std::uint32_t Bytes>
struct Mpmc {
	using T = Item<Bytes>;
	using Queue = folly::MPMCQueue<T>;

	static void *create(std::uint32_t capacity, std::uint32_t, std::uint32_t)
	{
		return make<Queue>(std::size_t(capacity));
	}

	static bool try_send(void *queue, std::uint32_t, const void *item)
	{
		return static_cast<Queue *>(queue)->write(*static_cast<const T *>(item));
	}

	static bool try_receive(void *queue, std::uint32_t, void *item)
	{
		return static_cast<Queue *>(queue)->read(*static_cast<T *>(item));
	}

	static constexpr queue_functions functions{create, destroy<Queue>, try_send, try_receive};
};

} // namespace

const queue_functions *folly_pcq_functions(std::uint32_t item_bytes)
{
	return functions<Pcq>(item_bytes);
}

const queue_functions *folly_mpmc_functions(std::uint32_t item_bytes)
{
	return functions<Mpmc>(item_bytes);
}
