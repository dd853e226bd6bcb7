// Writes the results of a task's step into the rows of a frame, for all envs of a block at once. In
// Python this part of a step would take longer than the physics of a small block.
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

struct InfoColumn {
    py::object key;
    int type;  // NumPy's number of the dtype
    FrameRows values;
    FrameRows mask;
};

class TaskRows {
 public:
    TaskRows(std::size_t first, std::size_t count, const std::shared_ptr<Meter>& meter,
             const py::array_t<std::int64_t>& elapsed, std::int64_t limit)
        : first_(first), count_(count), meter_(meter), elapsed_(elapsed), limit_(limit) {
        if (static_cast<std::size_t>(elapsed.size()) != count) {
            throw py::value_error("cannot make rows: expected one number of steps for each env");
        }
    }

    void use(const py::object& frames, bool infos) {
        const py::list observations = frames.attr("observations");
        observations_ = FrameRows(observations[0].cast<py::array>(), first_);
        type_ = observations[0].cast<py::array>().dtype().num();
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
    std::pair<bool, py::object> write(std::uint32_t frame, const py::array& observations,
                                      const py::object& rewards, const py::object& terminated,
                                      const py::dict& infos) {
        copy("observations", observations, type_, observations_, frame);
        const auto numbers =
            rewards.cast<py::array_t<double, py::array::c_style | py::array::forcecast>>();
        if (numbers.ndim() != 1 || numbers.shape(0) != static_cast<py::ssize_t>(count_)) {
            throw py::value_error("rewards: expected one for each simulation");
        }
        std::copy_n(numbers.data(), count_, rewards_.at<double>(frame));
        write_ends(frame, terminated);
        const bool over = count_ended(frame);
        py::object rest = py::none();
        if (infos_) {
            std::size_t guess = 0;
            for (const auto& [key, value] : infos) {
                if (write_info(frame, key, value, guess)) continue;
                if (rest.is_none()) rest = py::dict();
                rest[key] = value;
            }
        }
        const std::int64_t now = now_ns();
        const std::int64_t each = (now - began_) / static_cast<std::int64_t>(count_);
        for (std::size_t i = 0; i < count_; ++i) meter_->stepped(first_ + i, each);
        meter_->idle(now);
        return {over, rest};
    }

 private:
    void write_ends(std::uint32_t frame, const py::object& terminated) {
        auto* to = terminated_.at<std::uint8_t>(frame);
        if (PyBool_Check(terminated.ptr())) {
            std::memset(to, terminated.ptr() == Py_True, count_);
            return;
        }
        const auto flags = terminated.cast<py::array_t<bool, py::array::c_style>>();
        if (flags.ndim() != 1 || flags.shape(0) != static_cast<py::ssize_t>(count_)) {
            throw py::value_error("terminated: expected one flag for each simulation");
        }
        std::memcpy(to, flags.data(), count_);
    }

    // Counts the step, truncates episodes at the limit, and returns whether any has ended.
    bool count_ended(std::uint32_t frame) {
        const auto* terminated = terminated_.at<std::uint8_t>(frame);
        auto* truncated = truncated_.at<std::uint8_t>(frame);
        std::int64_t* elapsed = elapsed_.mutable_data();
        std::uint8_t over = 0;
        for (std::size_t i = 0; i < count_; ++i) {
            truncated[i] = ++elapsed[i] >= limit_ ? 1 : 0;
            over |= static_cast<std::uint8_t>(truncated[i] | terminated[i]);
        }
        return over != 0;
    }

    // Copies an array with one row for each env, if its type and shape match the target's.
    bool copied(const py::array& array, int type, const FrameRows& to, std::uint32_t frame) {
        const char order = array.dtype().byteorder();
        if (array.dtype().num() != type || (order != '=' && order != '|') ||
            !to.is_shape_of(array, count_)) {
            return false;
        }
        const py::array rows = py::array::ensure(array, py::array::c_style);
        std::memcpy(to.at(frame), rows.data(), count_ * to.row_bytes());
        return true;
    }

    void copy(const char* what, const py::array& array, int type, const FrameRows& to,
              std::uint32_t frame) {
        if (!copied(array, type, to, frame)) {
            throw py::value_error(std::string(what) +
                                  ": expected one row for each simulation, as in the space");
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
inline constexpr bool is_bound<TaskRows> = true;

void register_task_rows(py::module_& m) {
    Class<TaskRows>(m, "TaskRows")
        .def(py::init<std::size_t, std::size_t, const std::shared_ptr<Meter>&,
                      const py::array_t<std::int64_t>&, std::int64_t>(),
             py::arg("first"), py::arg("count"), py::arg("meter"), py::arg("elapsed"),
             py::arg("limit"))
        .def("use", &TaskRows::use, py::arg("frames"), py::arg("infos"),
             "Write to these frames from now on, with infos or without.")
        .def("add_mask", &TaskRows::add_mask, py::arg("mask"),
             "Clear this mask of infos too when a step begins.")
        .def("add_column", &TaskRows::add_column, py::arg("key"), py::arg("values"),
             py::arg("mask"), "Write the infos of this key to these arrays.")
        .def("begin", &TaskRows::begin, py::arg("frame"), "Begin a step of all envs.")
        .def("write", &TaskRows::write, py::arg("frame"), py::arg("observations"),
             py::arg("rewards"), py::arg("terminated"), py::arg("infos"),
             "Write the results of a step of all envs; return whether an episode has ended, and "
             "the infos without a column, or None.");
}

}  // namespace pysampler::bindings
