// Writes the results of a step of a batch into the rows of a frame, for all its envs at once. In
// Python this part of a step would take longer than the physics of a small block.
#include <pybind11/critical_section.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "clock.h"
#include "meter.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

// The rows of a block's envs in an array [frames, envs, ...].
class FrameRows {
 public:
    FrameRows() = default;
    FrameRows(const py::array& array, std::size_t first)
        : owner_(array), frame_bytes_(static_cast<std::size_t>(array.strides(0))) {
        row_bytes_ = static_cast<std::size_t>(array.itemsize());
        shape_.assign(array.shape() + 2, array.shape() + array.ndim());
        for (const py::ssize_t size : shape_) row_bytes_ *= static_cast<std::size_t>(size);
        bytes_ = static_cast<std::byte*>(const_cast<void*>(array.data())) + first * row_bytes_;
    }

    template <class T = std::byte>
    T* at(std::uint32_t frame) const {
        return reinterpret_cast<T*>(bytes_ + frame * frame_bytes_);
    }
    std::size_t row_bytes() const { return row_bytes_; }
    // Whether `array` has `count` rows of this shape.
    bool is_shape_of(const py::array& array, std::size_t count) const {
        return static_cast<std::size_t>(array.ndim()) == shape_.size() + 1 &&
               static_cast<std::size_t>(array.shape(0)) == count &&
               std::equal(shape_.begin(), shape_.end(), array.shape() + 1);
    }

 private:
    py::array owner_;
    std::vector<py::ssize_t> shape_;  // of a row
    std::byte* bytes_ = nullptr;
    std::size_t frame_bytes_ = 0;
    std::size_t row_bytes_ = 0;
};

using Ids = py::array_t<std::int32_t, py::array::c_style>;

struct InfoColumn {
    py::object key;
    int type;  // NumPy's number of the dtype
    FrameRows values;
    FrameRows mask;
};

// Owner: that of the block which writes with it.
class BatchRows {
 public:
    BatchRows(std::size_t first, std::size_t count, const std::shared_ptr<Meter>& meter,
              const py::array_t<std::int64_t>& elapsed, std::int64_t limit)
        : first_(first), count_(count), meter_(meter), elapsed_(elapsed), limit_(limit) {
        if (static_cast<std::size_t>(elapsed.size()) != count) {
            throw py::value_error("cannot make rows: expected one number of steps for each env");
        }
    }

    void use(const py::object& frames, bool infos) {
        const py::list observations = frames.attr("observations");
        if (!observations.empty()) {
            observations_ = FrameRows(observations[0].cast<py::array>(), first_);
            type_ = observations[0].cast<py::array>().dtype().num();
        }
        rewards_ = FrameRows(frames.attr("rewards").cast<py::array>(), first_);
        terminated_ = FrameRows(frames.attr("terminated").cast<py::array>(), first_);
        truncated_ = FrameRows(frames.attr("truncated").cast<py::array>(), first_);
        has_final_ = FrameRows(frames.attr("has_final").cast<py::array>(), first_);
        frames_ = static_cast<std::size_t>(frames.attr("count").cast<int>());
        infos_ = infos;
        columns_.clear();
        masks_.clear();
    }

    void add_mask(const py::array& mask) { masks_.emplace_back(mask, first_); }

    void add_column(const py::object& key, const py::array& values, const py::array& mask) {
        columns_.push_back(
            {key, values.dtype().num(), FrameRows(values, first_), FrameRows(mask, first_)});
        add_mask(mask);
    }

    // Begins a step: clears the infos of these envs.
    void begin(std::uint32_t frame) {
        if (frame >= frames_) {
            throw py::index_error("cannot use frame " + std::to_string(frame) + ": no such frame");
        }
        began_ = now_ns();
        meter_->at(static_cast<std::int64_t>(first_), began_);
        for (const FrameRows& mask : masks_) std::memset(mask.at(frame), 0, count_);
        std::memset(has_final_.at(frame), 0, count_);
    }

    // Writes the results of a step of all envs. Returns whether an episode has ended, and a dict of
    // the infos that have no column, or None.
    // Without `truncated`, episodes are truncated at the limit. Steps of envs in the mask
    // `uncounted` do not count.
    std::pair<bool, py::object> write(std::uint32_t frame, const py::object& observations,
                                      const py::object& rewards, const py::object& terminated,
                                      const py::dict& infos, const py::object& truncated,
                                      const py::object& uncounted) {
        if (!observations.is_none()) write_observations(frame, observations.cast<py::array>());
        const auto numbers =
            rewards.cast<py::array_t<double, py::array::c_style | py::array::forcecast>>();
        if (!rewards_.is_shape_of(numbers, count_)) {
            throw py::value_error("rewards of shape " +
                                  std::string(py::str(numbers.attr("shape"))) +
                                  ", expected a row for each of the " + std::to_string(count_) +
                                  " envs, of the shape of their reward_space");
        }
        std::memmove(rewards_.at(frame), numbers.data(), count_ * rewards_.row_bytes());
        write_flags("terminated", terminated_.at<std::uint8_t>(frame), terminated);
        if (truncated.is_none()) {
            count_step(frame);
        } else {
            write_flags("truncated", truncated_.at<std::uint8_t>(frame), truncated);
        }
        const bool over = any_ended(frame);
        py::object rest = py::none();
        if (infos_) {
            std::size_t guess = 0;
            const py::scoped_critical_section alone{infos};
            for (const auto& item : infos) {
                // Keep references: comparing a key may run Python code, which changes the dict.
                const auto key = py::reinterpret_borrow<py::object>(item.first);
                const auto value = py::reinterpret_borrow<py::object>(item.second);
                if (write_info(frame, key, value, guess)) continue;
                if (rest.is_none()) rest = py::dict();
                rest[key] = value;
            }
        }
        const std::int64_t now = now_ns();
        const std::int64_t each = (now - began_) / static_cast<std::int64_t>(count_);
        std::vector<std::uint8_t> skipped;
        if (!uncounted.is_none()) {
            skipped.resize(count_);
            write_flags("uncounted", skipped.data(), uncounted);
        }
        for (std::size_t i = 0; i < count_; ++i) {
            if (skipped.empty() || skipped[i] == 0) meter_->stepped(first_ + i, each);
        }
        meter_->idle(now);
        return {over, rest};
    }

    // Writes the first observations of the envs `ids`, whose resets began at `began`. With `clear`
    // it sets their rewards and ends to 0, since they made no step.
    void write_resets(std::uint32_t frame, const Ids& ids, const py::array& observations,
                      bool clear, std::int64_t began) {
        const auto count = static_cast<std::size_t>(ids.size());
        if (!is_alike(observations, type_) || !observations_.is_shape_of(observations, count)) {
            throw py::value_error("observations: expected one row for each env, as in the space");
        }
        const py::array rows = py::array::ensure(observations, py::array::c_style);
        const auto* from = static_cast<const std::byte*>(rows.data());
        const std::size_t bytes = observations_.row_bytes();
        std::int64_t* elapsed = elapsed_.mutable_data();
        for (std::size_t row = 0; row < count; ++row) {
            const auto i = static_cast<std::size_t>(ids.data()[row]);
            if (i >= count_) throw py::index_error("cannot reset an env that is not in the block");
            std::memcpy(observations_.at(frame) + i * bytes, from + row * bytes, bytes);
            elapsed[i] = 0;
            if (clear) {
                std::memset(rewards_.at(frame) + i * rewards_.row_bytes(), 0, rewards_.row_bytes());
                terminated_.at<std::uint8_t>(frame)[i] = 0;
                truncated_.at<std::uint8_t>(frame)[i] = 0;
            }
        }
        const std::int64_t each = (now_ns() - began) / static_cast<std::int64_t>(count);
        for (std::size_t row = 0; row < count; ++row) {
            meter_->was_reset(first_ + static_cast<std::size_t>(ids.data()[row]), each);
        }
    }

 private:
    static bool is_alike(const py::array& array, int type) {
        const char order = array.dtype().byteorder();
        return array.dtype().num() == type && (order == '=' || order == '|');
    }

    void write_flags(const char* what, std::uint8_t* to, const py::object& flags) {
        if (PyBool_Check(flags.ptr())) {
            std::memset(to, flags.ptr() == Py_True, count_);
            return;
        }
        const auto array = flags.cast<py::array_t<bool, py::array::c_style>>();
        if (array.ndim() != 1 || array.shape(0) != static_cast<py::ssize_t>(count_)) {
            throw py::value_error(std::string(what) + ": expected one flag for each env");
        }
        std::memmove(to, array.data(), count_);
    }

    // Counts the step, and truncates episodes at the limit.
    void count_step(std::uint32_t frame) {
        auto* truncated = truncated_.at<std::uint8_t>(frame);
        std::int64_t* elapsed = elapsed_.mutable_data();
        for (std::size_t i = 0; i < count_; ++i) truncated[i] = ++elapsed[i] >= limit_ ? 1 : 0;
    }

    bool any_ended(std::uint32_t frame) const {
        const auto* terminated = terminated_.at<std::uint8_t>(frame);
        const auto* truncated = truncated_.at<std::uint8_t>(frame);
        std::uint8_t over = 0;
        for (std::size_t i = 0; i < count_; ++i) {
            over |= static_cast<std::uint8_t>(truncated[i] | terminated[i]);
        }
        return over != 0;
    }

    // Copies an array with one row for each env, if its type and shape match the target's.
    bool copied(const py::array& array, int type, const FrameRows& to, std::uint32_t frame) {
        if (!is_alike(array, type) || !to.is_shape_of(array, count_)) return false;
        const py::array rows = py::array::ensure(array, py::array::c_style);
        std::memmove(to.at(frame), rows.data(), count_ * to.row_bytes());
        return true;
    }

    void write_observations(std::uint32_t frame, const py::array& array) {
        if (!copied(array, type_, observations_, frame)) {
            throw py::value_error("observations: expected one row for each env, as in the space");
        }
    }

    // False if no column matches. Keys mostly come in the order of the columns: start at `guess`.
    bool write_info(std::uint32_t frame, py::handle key, py::handle value, std::size_t& guess) {
        if (!py::isinstance<py::array>(value)) return false;
        const auto array = py::reinterpret_borrow<py::array>(value);
        for (std::size_t tried = 0; tried < columns_.size(); ++tried, ++guess) {
            if (guess >= columns_.size()) guess = 0;
            const InfoColumn& column = columns_[guess];
            if (!column.key.is(key) && !column.key.equal(key)) continue;
            if (!copied(array, column.type, column.values, frame)) continue;
            std::memset(column.mask.at(frame), 1, count_);
            ++guess;
            return true;
        }
        return false;
    }

    std::size_t first_;
    std::size_t count_;
    std::shared_ptr<Meter> meter_;
    py::array_t<std::int64_t> elapsed_;
    std::int64_t limit_;
    int type_ = 0;  // of observations
    std::size_t frames_ = 0;
    bool infos_ = false;
    FrameRows observations_, rewards_, terminated_, truncated_, has_final_;
    std::vector<FrameRows> masks_;
    std::vector<InfoColumn> columns_;
    std::int64_t began_ = 0;
};

}  // namespace

template <>
inline constexpr bool is_bound<BatchRows> = true;

void register_batch_rows(py::module_& m) {
    Class<BatchRows>(m, "BatchRows")
        .def(py::init<std::size_t, std::size_t, const std::shared_ptr<Meter>&,
                      const py::array_t<std::int64_t>&, std::int64_t>(),
             py::arg("first"), py::arg("count"), py::arg("meter"), py::arg("elapsed"),
             py::arg("limit"))
        .def("use", &BatchRows::use, py::arg("frames"), py::arg("infos"),
             "Write to these frames from now on, with infos or without.")
        .def("add_mask", &BatchRows::add_mask, py::arg("mask"),
             "Clear this mask of infos too when a step begins.")
        .def("add_column", &BatchRows::add_column, py::arg("key"), py::arg("values"),
             py::arg("mask"), "Write the infos of this key to these arrays.")
        .def("begin", &BatchRows::begin, py::arg("frame"), "Begin a step of all envs.")
        .def("write", &BatchRows::write, py::arg("frame"), py::arg("observations"),
             py::arg("rewards"), py::arg("terminated"), py::arg("infos"),
             py::arg("truncated") = py::none(), py::arg("uncounted") = py::none(),
             "Write the results of a step of all envs; return whether an episode has ended, and "
             "the infos without a column, or None. If observations are None, they are not "
             "written. Without `truncated`, the limit applies. Steps of envs in the mask "
             "`uncounted` do not count.")
        .def("write_resets", &BatchRows::write_resets, py::arg("frame"), py::arg("ids"),
             py::arg("observations"), py::arg("clear"), py::arg("began"),
             "Write the first observations of some envs, whose resets began at a time.");
}

}  // namespace pysampler::bindings
