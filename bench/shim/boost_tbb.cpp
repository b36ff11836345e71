// Boost's spsc_queue (SPSC) and queue (MPMC), and oneTBB's concurrent_bounded_queue (MPMC).
//
// Boost's queues allocate all their memory at the start; bounded_push never allocates. TBB's queue
// allocates pages as it grows, up to its capacity. All three ignore the numbers of producers and
// consumers.

#include <boost/lockfree/queue.hpp>
#include <boost/lockfree/spsc_queue.hpp>
#include <tbb/concurrent_queue.h>

#include "adapter.h"

namespace {

template <std::uint32_t Bytes>
struct BoostSpsc {
	using T = Item<Bytes>;
	using Queue = boost::lockfree::spsc_queue<T>;

	static void *create(std::uint32_t capacity, std::uint32_t, std::uint32_t)
	{
		return make<Queue>(std::size_t(capacity));
	}

	static bool try_send(void *queue, std::uint32_t, const void *item)
	{
		return static_cast<Queue *>(queue)->push(*static_cast<const T *>(item));
	}

	static bool try_receive(void *queue, std::uint32_t, void *item)
	{
		return static_cast<Queue *>(queue)->pop(*static_cast<T *>(item));
	}

	static constexpr queue_functions functions{create, destroy<Queue>, try_send, try_receive};
};

template <std::uint32_t Bytes>
struct BoostMpmc {
	using T = Item<Bytes>;
	using Queue = boost::lockfree::queue<T>;

	static void *create(std::uint32_t capacity, std::uint32_t, std::uint32_t)
	{
		return make<Queue>(std::size_t(capacity));
	}

	static bool try_send(void *queue, std::uint32_t, const void *item)
	{
		return static_cast<Queue *>(queue)->bounded_push(*static_cast<const T *>(item));
	}

	static bool try_receive(void *queue, std::uint32_t, void *item)
	{
		return static_cast<Queue *>(queue)->pop(*static_cast<T *>(item));
	}

	static constexpr queue_functions functions{create, destroy<Queue>, try_send, try_receive};
};

template <std::uint32_t Bytes>
struct TbbBounded {
	using T = Item<Bytes>;

	struct Queue {
		tbb::concurrent_bounded_queue<T> queue;

		explicit Queue(std::uint32_t capacity)
		{
			queue.set_capacity(static_cast<std::ptrdiff_t>(capacity));
		}
	};

	static void *create(std::uint32_t capacity, std::uint32_t, std::uint32_t)
	{
		return make<Queue>(capacity);
	}

	// No exception may reach the caller: without memory for a page, the queue counts as full.
	static bool try_send(void *queue, std::uint32_t, const void *item)
	{
		try {
			return static_cast<Queue *>(queue)->queue.try_push(*static_cast<const T *>(item));
		} catch (...) {
			return false;
		}
	}

	static bool try_receive(void *queue, std::uint32_t, void *item)
	{
		return static_cast<Queue *>(queue)->queue.try_pop(*static_cast<T *>(item));
	}

	static constexpr queue_functions functions{create, destroy<Queue>, try_send, try_receive};
};

} // namespace

const queue_functions *boost_spsc_functions(std::uint32_t item_bytes)
{
	return functions<BoostSpsc>(item_bytes);
}

const queue_functions *boost_mpmc_functions(std::uint32_t item_bytes)
{
	return functions<BoostMpmc>(item_bytes);
}

const queue_functions *tbb_bounded_functions(std::uint32_t item_bytes)
{
	return functions<TbbBounded>(item_bytes);
}
